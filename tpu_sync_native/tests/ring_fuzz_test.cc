// Fuzzes what a hostile client may write into its ring: counters, headers, lengths, ids, keys. The server
// must not read outside the request area, and no other session may lose anything by it. See fuzz/driver.h.
//
// An input: where the server and the client say they are (RingClaim), then the request area.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "fuzz/driver.h"
#include "ring/ring_server.h"
#include "store_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr SessionId kHonest = 1, kHostile = 2;

struct RingClaim {
  uint64_t tail;
  uint64_t head;  // of the reader that is tried alone: a server that has read so much before
  uint8_t pad[48];
};
static_assert(sizeof(RingClaim) == kRecordUnit);

uint64_t RoundedTail(size_t area_bytes) { return area_bytes / kRecordUnit * kRecordUnit; }

// Lengths that lead from record to record, and a tail behind the last, so that a change reaches what comes
// after them.
void Repair(std::string* input) {
  if (input->size() < sizeof(RingClaim) + kRecordUnit) return;
  const uint64_t tail = RoundedTail(input->size() - sizeof(RingClaim));
  std::memcpy(input->data() + offsetof(RingClaim, tail), &tail, sizeof(tail));
  for (uint64_t at = 0; at < tail;) {
    char* const record = input->data() + sizeof(RingClaim) + at;
    uint32_t bytes = 0;
    std::memcpy(&bytes, record, sizeof(bytes));
    bytes = static_cast<uint32_t>(std::min<uint64_t>(tail - at, std::max(bytes / 64 * 64, kRecordUnit)));
    std::memcpy(record, &bytes, sizeof(bytes));
    at += bytes;
  }
}

// The reader alone, at any place of the area: what it takes lies inside, and is what it says.
void TryReader(const RingMap& ring, const RingClaim& claim, std::string_view area) {
  const uint64_t head = claim.head / kRecordUnit * kRecordUnit;
  const uint64_t first = head % kRequestAreaBytes;
  const uint64_t until_end = std::min<uint64_t>(area.size(), kRequestAreaBytes - first);
  std::memcpy(ring.requests() + first, area.data(), until_end);
  ring.header().request_tail.store(head + RoundedTail(area.size()));
  RequestReader reader;
  const ReadOutcome outcome = reader.Read(ring, head);
  if (outcome == ReadOutcome::kSkipped) HOLDS(first + reader.record_bytes() == kRequestAreaBytes);
  if (outcome != ReadOutcome::kRequest) return;
  HOLDS(reader.record_bytes() % kRecordUnit == 0 && first + reader.record_bytes() <= kRequestAreaBytes);
  HOLDS(reader.record_bytes() <= RoundedTail(area.size()));
  if (reader.op() == Op::kLease || reader.op() == Op::kReserve) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < reader.keys().count; ++i) bytes += reader.keys().at(i).size();
    HOLDS(bytes <= reader.record_bytes());
  }
  if (reader.op() == Op::kCommit) HOLDS(reader.keep().size() <= reader.record_bytes());
}

void TryServer(const RingClaim& claim, std::string_view area) {
  StoreFixture f;
  const MemFile doorbell("doorbell"), file("ring");
  f.Put(0, 8);
  const ReadGrant read = f.store->Lease(kHonest, f.ns, Range(0, 4).batch());
  const WriteGrant write = f.store->Reserve(kHonest, f.ns, Range(100, 4).batch());
  f.store->OpenSession(kHostile, kHostile, 200);
  RingServer server(*f.store, doorbell.fd());
  server.Add(kHostile, file.fd());
  const RingMap ring = RingMap::Open(file.fd());
  std::memcpy(ring.requests(), area.data(), area.size());
  ring.header().request_tail.store(claim.tail);
  server.Remove(kHostile);  // serves what there is, as long as it is no lie

  HOLDS(ring.header().server_closed.load() == 1);
  ReplyHeader reply{};
  std::memcpy(&reply, ring.reply(), sizeof(reply));
  HOLDS(sizeof(reply) + reply.slot_count * sizeof(SlotRef) + reply.grant_count <= kReplyAreaBytes);
  HOLDS(f.store->Audit().empty());
  f.store->CloseSession(kHostile, /*drained=*/true);
  HOLDS(f.store->Audit().empty());
  // What the other one holds is as it was.
  HOLDS(read.slots.size() == 4 && write.slots.size() == 4);
  for (const SlotRef& ref : read.slots) HOLDS(f.reader->Unchanged(ref.slot, ref.generation));
  HOLDS(f.store->Release(kHonest, read.lease) == Outcome::kOk);
  HOLDS(f.store->Commit(kHonest, write.lease) == Outcome::kOk);
  HOLDS(f.reader->LongestPrefix(f.ns, Range(100, 4).batch()) == 4);
  HOLDS(f.Stat("read_leases") + f.Stat("write_leases") == 0);
  HOLDS(f.Stat("pinned_slots") + f.Stat("reserved_slots") + f.Stat("quarantined_slots") == 0);
}

void TryOne(std::string_view input) {
  if (input.size() < sizeof(RingClaim)) return;
  RingClaim claim;
  std::memcpy(&claim, input.data(), sizeof(claim));
  const std::string_view area =
      input.substr(sizeof(claim), std::min<size_t>(input.size() - sizeof(claim), kRequestAreaBytes));
  {
    const MemFile file("ring");
    TryReader(RingMap::Create(file.fd()), claim, area);
  }
  TryServer(claim, area);
}

const Target kTarget{.name = "ring",
                     .one = &TryOne,
                     .repair = &Repair,
                     .begins = sizeof(RingClaim),
                     .iterations = 3'000,
                     .input_bytes_max = 64 << 10};

}  // namespace
}  // namespace tpu_sync_native::testing

KVTIER_FUZZ(tpu_sync_native::testing::kTarget)
