// Hosts that share a root, each with the parts of the storage tier that deal with the others, and a clock
// that the test moves. Chunks have bytes that follow from their keys.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fake_files.h"
#include "segment/names.h"
#include "storage/own_lease.h"
#include "storage/peers.h"
#include "storage/record_batch.h"
#include "storage/retire.h"
#include "storage/segment_reader.h"
#include "storage/segment_writer.h"
#include "store_fixture.h"

namespace tpu_sync_native::testing {

inline constexpr uint64_t kHostChunkBytes = 8192;

inline std::string ChunkOf(const std::string& key) {
  std::string bytes(kHostChunkBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(key[i % key.size()] + i / key.size());
  return bytes;
}

inline std::string NumberedKey(uint64_t number) { return KeyOf(number); }

struct HostOptions {
  uint64_t segment_bytes = 64 << 10;
  uint64_t quota_bytes = 0;
  uint64_t namespace_quota_bytes = 0;
  uint8_t namespace_byte = 7;  // which namespace
  uint64_t records_max = 10'000;
};

class TestHost {
 public:
  explicit TestHost(std::shared_ptr<FileSystem> files, const HostOptions& options = {})
      : catalog_file_("catalog"), context(std::make_shared<StorageContext>()) {
    StorageOptions& storage = context->options;
    MakeHostId(storage.host_id);
    std::memcpy(&storage.boot_id, storage.host_id, sizeof(storage.boot_id));
    storage.segment_bytes = options.segment_bytes;
    storage.quota_bytes = options.quota_bytes;
    storage.namespace_quota_bytes = options.namespace_quota_bytes;
    storage.poll_ms = 1000;
    storage.io_bytes = 16 << 10;
    storage.heartbeat_ms = 1000;
    storage.dead_after_ms = 10'000;
    context->files = files;
    IoPoolOptions pool;
    pool.threads = 1;
    context->control = std::make_shared<IoPool>(pool);
    context->loads = std::make_shared<IoPool>(pool);
    context->catalog = std::make_shared<Catalog>(catalog_file_.fd(), options.records_max, storage.boot_id);
    context->segments = std::make_shared<SegmentTable>(files);
    ns = Open(1, options.namespace_byte);
    peers = std::make_unique<Peers>(context);
    writer = std::make_unique<SegmentWriter>(context, ns);
  }

  std::shared_ptr<StorageNamespace> Open(uint32_t index, uint8_t byte) {
    auto opened = std::make_shared<StorageNamespace>();
    opened->ns = index;
    std::memset(opened->id, byte, sizeof(opened->id));
    opened->chunk_bytes = kHostChunkBytes;
    std::memcpy(opened->host_id, context->options.host_id, sizeof(opened->host_id));
    opened->state.store(StorageNamespace::State::kReady);
    const std::lock_guard lock(context->mutex);
    context->namespaces[index] = opened;
    return opened;
  }

  void Beat() { CHECK(peers->Heartbeat(*ns, now_ms).ok()); }
  // A round, `after_ms` later.
  IoError Round(uint64_t after_ms = 1000) {
    now_ms += after_ms;
    const IoError error = peers->Heartbeat(*ns, now_ms);
    return error.ok() ? peers->Poll(*ns, now_ms) : error;
  }
  void Rounds(int count) {
    for (int i = 0; i < count; ++i) CHECK(Round().ok());
  }

  // Appends chunks first .. first + count - 1, syncs, publishes the tail.
  void Write(uint64_t first, uint64_t count, bool sync = true) {
    RecordBatch batch(kHostChunkBytes, Codec::kRaw, 1 << 20);
    std::vector<std::string> chunks;
    chunks.reserve(count);
    for (uint64_t i = first; i < first + count; ++i) {
      chunks.push_back(ChunkOf(NumberedKey(i)));
      CHECK(batch.Add(NumberedKey(i), reinterpret_cast<const uint8_t*>(chunks.back().data())));
    }
    CHECK(writer->Append(batch, ns->epoch.load()).ok());
    if (sync) CHECK(writer->Sync().ok());
  }
  void WriteSealed(uint64_t first, uint64_t count) {
    Write(first, count);
    CHECK(writer->Seal().ok());
  }

  // Whether the catalog leads to it.
  bool Knows(uint64_t number) const {
    const uint64_t word = context->catalog->Find(MakeCatalogKey(ns->id, NumberedKey(number)));
    return word != 0 && context->segments->Get(UnpackWhere(word).segment) != nullptr;
  }
  // Reads it as a promote does: kMissing also when it is not known. Wrong bytes end the test.
  ReadVerdict Read(uint64_t number) {
    const std::string key = NumberedKey(number);
    const uint64_t word = context->catalog->Find(MakeCatalogKey(ns->id, key));
    if (word == 0) return ReadVerdict::kMissing;
    const Where where = UnpackWhere(word);
    const auto segment = context->segments->Get(where.segment);
    if (segment == nullptr) return ReadVerdict::kMissing;
    const AlignedBytes target = MakeAligned(kHostChunkBytes);
    const WantedChunk wanted{where.offset, where.stored_bytes, key, target.get()};
    ReadVerdict verdict = ReadVerdict::kIo;
    ReadChunks(*context, *segment, {&wanted, 1}, [&](size_t, ReadVerdict found) { verdict = found; });
    if (verdict == ReadVerdict::kOk) {
      CHECK(std::memcmp(target.get(), ChunkOf(key).data(), kHostChunkBytes) == 0);
    }
    return verdict;
  }
  bool Serves(uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) {
      if (Read(i) != ReadVerdict::kOk) return false;
    }
    return true;
  }
  bool ServesNone(uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) {
      if (Read(i) != ReadVerdict::kMissing) return false;
    }
    return true;
  }
  std::string directory() const { return context->host_directory(*ns); }

 private:
  MemFile catalog_file_;

 public:
  const std::shared_ptr<StorageContext> context;
  std::shared_ptr<StorageNamespace> ns;
  std::unique_ptr<Peers> peers;
  std::unique_ptr<SegmentWriter> writer;
  uint64_t now_ms = 1'000'000;
};

}  // namespace tpu_sync_native::testing
