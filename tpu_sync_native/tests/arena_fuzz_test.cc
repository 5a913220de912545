// Fuzzes what a daemon finds in the metadata of an earlier one: it opens empty, or takes over only what is
// consistent, and then works as any. See fuzz/driver.h.
//
// An input is a list of changes (Change) to the metadata of a store in which there is something of
// everything.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <stdexcept>

#include "fake_lower_tier.h"
#include "fuzz/driver.h"
#include "restart_fixture.h"

namespace tpu_sync_native::testing {
namespace {

enum class Where : uint8_t {
  kHeader = 0,
  kNamespaces = 1,
  kSessions = 2,
  kLeases = 3,
  kBuckets = 4,
  kSlots = 5,
  kKeyTails = 6,
  kFileSize = 7,  // `index` bytes are left, or added
  kCopySlot = 8,  // slot record `index` becomes as that of `field`
  kDataHole = 9,  // the payload from 4096 * index on has no memory
  kAnyByte = 10,  // of the file, at `index`
};
constexpr int kPlaces = 11;

struct Change {
  uint8_t where;
  uint8_t bytes;   // of value, 1 to 16
  uint16_t field;  // offset in the record
  uint32_t index;  // of the record
  uint8_t value[16];
  uint8_t pad[8];
};
static_assert(sizeof(Change) == 32);

const Shape kShape{.slabs = 4, .slab_bytes = 8 * 4096};

// Committed chunks with short and long keys, of two sizes and of a cleared epoch; reserved, quarantined and
// promoting slots; sessions that live.
struct Before {
  Before() : f(kShape) {
    f.store->SetLowerTier(&below);
    large = f.store->OpenNamespace("namespace-large0", 3 * 4096);
    cleared = f.store->OpenNamespace("namespace-clear0", 4096);
    f.store->OpenSession(2, 1, 200, {.start = 5, .space = 6});
    f.store->OpenSession(3, 3, 300, {.start = 7, .space = 6});
    f.Put(0, 4);
    f.Put(50, 2, f.ns, 1, kKeyBytesMax);
    f.Put(0, 1, large);
    f.Put(0, 2, cleared);
    f.store->ClearNamespace(cleared);
    CHECK(f.store->Reserve(2, f.ns, Range(100, 2).batch()).slots.size() == 2);
    CHECK(f.store->Reserve(3, f.ns, Range(200, 1).batch()).slots.size() == 1);
    f.store->CloseSession(3, /*drained=*/false);
    below.Put(f.ns, 300, 1);
    CHECK(f.store->Lease(1, f.ns, Range(300, 1).batch()).slots.size() == 1);
    f.CheckSound();
  }
  ~Before() { f.store->SetLowerTier(nullptr); }

  FakeLowerTier below;
  StoreFixture f;
  uint32_t large = 0, cleared = 0;
};

const Before& TheBefore() {
  static const Before before;
  return before;
}

uint64_t BytesOf(Where where) {
  switch (where) {
    case Where::kHeader:
      return sizeof(MetaHeader);
    case Where::kLeases:
      return sizeof(WriteLeaseRow);
    case Where::kKeyTails:
      return sizeof(KeyTail);
    default:
      return 64;
  }
}

void Apply(const Change& change, const MetaHeader& layout, int meta_fd, int data_fd) {
  const auto where = static_cast<Where>(change.where % kPlaces);
  const uint64_t size = layout.meta_bytes, field = change.field;
  const auto write = [&](uint64_t at) {
    const size_t bytes = 1 + (change.bytes - 1u) % sizeof(change.value);
    if (at + bytes <= size) CHECK(pwrite(meta_fd, change.value, bytes, static_cast<off_t>(at)) > 0);
  };
  const auto record = [&](uint64_t table, uint32_t count) {
    write(table + change.index % count * BytesOf(where) + field % BytesOf(where));
  };
  switch (where) {
    case Where::kHeader:
      return write(field % 256);
    case Where::kNamespaces:
      return record(layout.namespaces_offset, layout.namespaces_max);
    case Where::kSessions:
      return record(layout.sessions_offset, layout.sessions_max);
    case Where::kLeases:
      return record(layout.leases_offset, layout.leases_max);
    case Where::kBuckets:
      return record(layout.buckets_offset, layout.bucket_count);
    case Where::kSlots:
      return record(layout.slots_offset, layout.slots_max);
    case Where::kKeyTails:
      return record(layout.key_tails_offset, layout.slots_max);
    case Where::kFileSize:
      CHECK(ftruncate(meta_fd, static_cast<off_t>(change.index % (2 * size))) == 0);
      return;
    case Where::kCopySlot: {
      char bytes[sizeof(SlotRecord)] = {};
      const auto offset = [&](uint64_t slot) {
        return static_cast<off_t>(layout.slots_offset + slot % layout.slots_max * sizeof(SlotRecord));
      };
      if (pread(meta_fd, bytes, sizeof(bytes), offset(field)) != sizeof(bytes)) return;
      CHECK(pwrite(meta_fd, bytes, sizeof(bytes), offset(change.index)) == sizeof(bytes));
      return;
    }
    case Where::kDataHole:
      CHECK(fallocate(data_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(4096 * (change.index % 32)), 4096) == 0);
      return;
    case Where::kAnyByte:
      return write(change.index % size);
  }
}

// Works as any store: grants, commits, evicts, and gives all back.
void Use(Store& store, const IndexReader& reader) {
  const auto sound = [&] {
    const std::vector<std::string> findings = store.Audit();
    for (const std::string& finding : findings) std::fprintf(stderr, "audit: %s\n", finding.c_str());
    return findings.empty();
  };
  HOLDS(sound());
  for (const RestoredSession& session : store.RestoredSessions())
    HOLDS(session.session <= store.last_session());
  const SessionId mine = store.last_session() + 1;
  HOLDS(mine != 0);
  store.OpenSession(mine, mine, 1);
  for (const char* id : {"namespace-000000", "namespace-large0"}) {
    uint32_t ns = 0;
    try {
      ns = store.OpenNamespace(id, id[10] == 'l' ? 3 * 4096 : 4096);
    } catch (const std::invalid_argument&) {  // there is no room, or it has another chunk size by now
      continue;
    }
    for (uint64_t number = 0; number < 400; number += 50) {
      const Keys keys = Range(number, 4);
      const ReadGrant read = store.Lease(mine, ns, keys.batch());
      HOLDS(read.outcome == Outcome::kOk && (read.lease != 0) == !read.slots.empty());
      for (const SlotRef& ref : read.slots) HOLDS(reader.Unchanged(ref.slot, ref.generation));
      const WriteGrant write = store.Reserve(mine, ns, keys.batch());
      HOLDS(write.outcome == Outcome::kOk && (write.lease != 0) == !write.slots.empty());
      for (const SlotRef& ref : write.slots) {
        HOLDS(ref.offset + 4096 <= kShape.slabs * kShape.slab_bytes);
        for (const SlotRef& other : read.slots) HOLDS(other.offset != ref.offset);
      }
      if (write.lease != 0) HOLDS(store.Commit(mine, write.lease) == Outcome::kOk);
      if (read.lease != 0) HOLDS(store.Release(mine, read.lease) == Outcome::kOk);
    }
    HOLDS(sound());
    if (ns % 2 == 0) store.ClearNamespace(ns);
    store.Evict(ns, UINT64_MAX);
    HOLDS(reader.LongestPrefix(ns, Range(0, 1).batch()) == 0);
  }
  store.ReclaimStale(UINT64_MAX);
  for (const RestoredSession& session : store.RestoredSessions()) store.CloseSession(session.session, true);
  store.CloseSession(mine, true);
  store.ExpireLeases(UINT64_MAX);  // reads of storage that the life before had begun are over by then
  HOLDS(sound());
  for (const Counter& counter : store.Stats()) {
    if (counter.name == "pinned_slots" || counter.name == "reserved_slots" ||
        counter.name == "quarantined_slots") {
      HOLDS(counter.value == 0);
    }
  }
}

void TryOne(std::string_view input) {
  const Before& before = TheBefore();
  const MemFile data("data"), meta("meta");
  CopyFile(before.f.data_file.fd(), data.fd());
  CopyFile(before.f.meta_file.fd(), meta.fd());
  const auto& layout = *reinterpret_cast<const MetaHeader*>(before.f.meta.data());
  for (; input.size() >= sizeof(Change); input.remove_prefix(sizeof(Change))) {
    Change change;
    std::memcpy(&change, input.data(), sizeof(change));
    Apply(change, layout, meta.fd(), data.fd());
  }
  const auto arena = std::make_shared<Arena>(data.fd(), kShape.slabs * kShape.slab_bytes, kShape.slab_bytes);
  StoreOptions options = OptionsOf(kShape, 8, /*keep=*/true);
  const std::string why =
      Store::WhyNotKept(data.fd(), arena->bytes(), arena->slab_bytes(), meta.fd(), options);
  if (!why.empty()) {
    bool refused = false;
    try {
      Store store(arena, meta.fd(), options);
    } catch (const std::exception&) {
      refused = true;
    }
    HOLDS(refused);
    options.keep = false;
    arena->Populate();
  }
  Store store(arena, meta.fd(), options);
  const Mapping mapping(meta.fd(), FileBytes(meta.fd(), "meta"), Mapping::Access::kRead, "meta");
  Use(store, IndexReader(mapping.data(), mapping.bytes()));
}

const Target kTarget{.name = "arena",
                     .one = &TryOne,
                     .repair = nullptr,
                     .begins = 0,
                     .unit = sizeof(Change),
                     .fields = sizeof(Change),
                     .iterations = 3'000,
                     .input_bytes_max = 4096};

}  // namespace
}  // namespace tpu_sync_native::testing

KVTIER_FUZZ(tpu_sync_native::testing::kTarget)
