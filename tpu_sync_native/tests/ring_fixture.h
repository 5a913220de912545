// A daemon's native half in this process (arena, store, ring server) and sessions attached to it, for tests.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "catalog/catalog.h"
#include "client/session.h"
#include "ring/ring_server.h"
#include "store/store.h"

namespace tpu_sync_native::testing {

inline constexpr uint64_t kChunkBytes = 4096;

// A memfd, closed at the end of its life.
class MemFd {
 public:
  MemFd() : fd_(memfd_create("ring-test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {}
  ~MemFd() { close(fd_); }
  MemFd(const MemFd&) = delete;
  MemFd& operator=(const MemFd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Keys of one batch with their own memory: key i is `key_bytes` long and holds first + i.
class Keys {
 public:
  Keys(uint64_t first, uint32_t count, uint32_t key_bytes = 32)
      : offsets_(count + 1), bytes_(count * key_bytes) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t number = first + i;
      std::memcpy(bytes_.data() + uint64_t{i} * key_bytes, &number, sizeof(number));
      offsets_[i + 1] = (i + 1) * key_bytes;
    }
    batch_ = {bytes_.data(), offsets_.data(), count};
  }
  const KeyBatch& batch() const { return batch_; }

 private:
  std::vector<uint32_t> offsets_;
  std::vector<uint8_t> bytes_;
  KeyBatch batch_;
};

struct TestDaemon {
  // records_max: of the catalog; 0: a daemon without storage.
  explicit TestDaemon(uint64_t dram_bytes = 16u << 20, uint64_t records_max = 0) {
    arena = std::make_shared<Arena>(data.get(), dram_bytes, 2u << 20);
    arena->Populate();
    StoreOptions options;
    options.boot_id = 7;
    store = std::make_unique<Store>(arena, meta.get(), options);
    server = std::make_unique<RingServer>(*store, doorbell.get());
    if (records_max == 0) {
      MakeEmptyCatalog(catalog.get(), options.boot_id);
    } else {
      storage = std::make_unique<Catalog>(catalog.get(), records_max, options.boot_id);
    }
    ns = store->OpenNamespace(std::string(16, 'n'), kChunkBytes);
  }

  // A session of this number; `ring` must outlive nothing.
  std::unique_ptr<Session> Attach(SessionId session, uint64_t deadline_ms = 10'000) {
    const MemFd ring;
    return AttachTo(ring, session, deadline_ms);
  }
  std::unique_ptr<Session> AttachTo(const MemFd& ring, SessionId session, uint64_t deadline_ms = 10'000) {
    store->OpenSession(session, /*group=*/session, static_cast<uint32_t>(getpid()));
    server->Add(session, ring.get());
    return std::make_unique<Session>(data.get(), meta.get(), ring.get(), doorbell.get(), catalog.get(),
                                     deadline_ms);
  }
  void Detach(SessionId session) {
    server->Remove(session);
    store->CloseSession(session, /*drained=*/true);
  }

  MemFd data, meta, doorbell, catalog;
  std::shared_ptr<Arena> arena;
  std::unique_ptr<Store> store;
  std::unique_ptr<RingServer> server;
  std::unique_ptr<Catalog> storage;
  uint32_t ns = 0;
};

inline Incoming Ask(Session& session, const Outgoing& request, Lost expected = Lost::kNo) {
  Incoming reply;
  if (session.Call(request, &reply) != expected) std::abort();
  return reply;
}

// Reserves and commits what is not there of these keys.
inline void StoreKeys(Session& session, uint32_t ns, const Keys& keys) {
  const Incoming grant = Ask(session, {.op = Op::kReserve, .ns = ns, .keys = &keys.batch()});
  if (grant.lease != 0) Ask(session, {.op = Op::kCommit, .lease = grant.lease});
}

}  // namespace tpu_sync_native::testing
