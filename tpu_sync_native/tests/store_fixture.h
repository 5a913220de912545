// A store of its own on anonymous files, keys by number, and shorthand for the checks that all tests make.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "check.h"
#include "index/index_reader.h"
#include "store/store.h"

namespace tpu_sync_native::testing {

class MemFile {
 public:
  explicit MemFile(const char* name) : fd_(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    CHECK(fd_ >= 0);
  }
  ~MemFile() { close(fd_); }
  MemFile(const MemFile&) = delete;
  MemFile& operator=(const MemFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Owns the memory of a KeyBatch.
class Keys {
 public:
  void Add(const std::string& key) {
    bytes_ += key;
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  KeyBatch batch() const {
    return {reinterpret_cast<const uint8_t*>(bytes_.data()), offsets_.data(),
            static_cast<uint32_t>(offsets_.size() - 1)};
  }

 private:
  std::string bytes_;
  std::vector<uint32_t> offsets_{0};
};

// The key of a number; keys of different numbers or lengths differ. Not random on purpose.
inline std::string KeyOf(uint64_t number, uint32_t bytes = 32) {
  std::string key(bytes, 'k');
  for (int i = 0; i < 8; ++i) key[bytes - 8 + i] = static_cast<char>(number >> (8 * i));
  return key;
}

// Keys first, first + 1, ... (count of them).
inline Keys Range(uint64_t first, uint32_t count, uint32_t bytes = 32) {
  Keys keys;
  for (uint32_t i = 0; i < count; ++i) keys.Add(KeyOf(first + i, bytes));
  return keys;
}

struct Shape {
  uint64_t slabs = 4;
  uint64_t slab_bytes = 16 * 4096;
  uint32_t slots_max = 0;  // 0: one for every 4096 bytes
  std::string policy = "lru";
  uint64_t lease_ms = 600'000;
  ChecksumPolicy checksum = ChecksumPolicy::kOff;
};

struct StoreFixture {
  explicit StoreFixture(const Shape& shape = {})
      : arena(std::make_shared<Arena>(data_file.fd(), shape.slabs * shape.slab_bytes, shape.slab_bytes)) {
    arena->Populate();
    StoreOptions options;
    options.boot_id = 7;
    options.policy = shape.policy;
    options.lease_ms = shape.lease_ms;
    options.checksum = shape.checksum;
    options.slots_max = shape.slots_max ? shape.slots_max : static_cast<uint32_t>(arena->bytes() / 4096);
    store = std::make_unique<Store>(arena, meta_file.fd(), options);
    meta = Mapping(meta_file.fd(), FileBytes(meta_file.fd(), "meta"), Mapping::Access::kRead, "meta");
    reader = std::make_unique<IndexReader>(meta.data(), meta.bytes());
    store->OpenSession(1, 1, 100);
    ns = store->OpenNamespace("namespace-000000", 4096);
  }

  // What an engine does: reserve and commit. Returns how many chunks were granted.
  uint32_t Put(uint64_t first, uint32_t count, uint32_t space, SessionId session = 1, uint32_t bytes = 32) {
    const Keys keys = Range(first, count, bytes);
    const WriteGrant grant = store->Reserve(session, space, keys.batch());
    CHECK(grant.outcome == Outcome::kOk);
    if (grant.lease != 0) CHECK(store->Commit(session, grant.lease) == Outcome::kOk);
    return static_cast<uint32_t>(grant.slots.size());
  }
  uint32_t Put(uint64_t first, uint32_t count) { return Put(first, count, ns); }
  // Leading hits as an engine's own mapping shows them.
  uint32_t Hits(uint64_t first, uint32_t count, uint32_t space) const {
    const uint32_t hits = reader->LongestPrefix(space, Range(first, count).batch());
    CHECK(hits == store->LongestPrefix(space, Range(first, count).batch()));
    return hits;
  }
  uint32_t Hits(uint64_t first, uint32_t count) const { return Hits(first, count, ns); }
  bool Has(uint64_t number) const { return Hits(number, 1) == 1; }
  uint64_t Stat(std::string_view name) const {
    for (const Counter& counter : store->Stats()) {
      if (counter.name == name) return counter.value;
    }
    Fail(__FILE__, __LINE__, "no such counter:", std::string(name));
  }
  void CheckSound() const {
    const std::vector<std::string> findings = store->Audit();
    for (const std::string& finding : findings) std::fprintf(stderr, "audit: %s\n", finding.c_str());
    CHECK(findings.empty());
  }
  void CheckNothingHeld() const {
    CheckSound();
    for (const char* name : {"pinned_slots", "reserved_slots", "promoting_slots", "quarantined_slots",
                             "read_leases", "write_leases"}) {
      CHECK(Stat(name) == 0);
    }
  }

  MemFile data_file{"data"};
  MemFile meta_file{"meta"};
  std::shared_ptr<Arena> arena;
  std::unique_ptr<Store> store;
  Mapping meta;
  std::unique_ptr<IndexReader> reader;
  uint32_t ns = 0;
};

}  // namespace tpu_sync_native::testing
