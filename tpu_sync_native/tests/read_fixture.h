// Segments on a fake medium, a catalog that names their records, and a hook that sees every read.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "fake_files.h"
#include "segment_fixture.h"
#include "storage/context.h"
#include "store_fixture.h"

namespace tpu_sync_native::testing {

struct ReadCall {
  std::string path;
  uint64_t offset;
  uint64_t bytes;
};

struct ReadOptions {
  uint64_t chunk_bytes = 4096;
  uint64_t io_bytes = 1 << 20;
  int threads = 2;
  uint64_t stuck_ms = 60'000;
  uint64_t deadline_ms = 60'000;
  uint32_t failures_to_open = 1000;
  uint64_t queue_bytes = 1 << 30;
};

struct ReadFixture {
  explicit ReadFixture(const ReadOptions& wanted = {}) : options(wanted) {
    FileHooks hooks;
    hooks.before = [this](const FileCall& call) {
      if (call.op != kOpRead) return FileVerdict{};
      FileVerdict verdict;
      std::function<IoError(const ReadCall&)> hook;
      {
        const std::lock_guard lock(mutex);
        reads.push_back({call.path, call.offset, call.bytes});
        hook = on_read;
      }
      if (hook) verdict.error = hook({call.path, call.offset, call.bytes});
      return verdict;
    };
    context->files = std::make_shared<HookedFiles>(fake.files(), std::move(hooks));
    context->options.io_bytes = options.io_bytes;
    context->options.load_threads = static_cast<uint32_t>(options.threads);
    context->options.promote_deadline_ms = options.deadline_ms;
    context->options.promote_queue_bytes = options.queue_bytes;
    IoPoolOptions pool;
    pool.threads = options.threads;
    pool.stuck_ms = options.stuck_ms;
    pool.failures_to_open = options.failures_to_open;
    context->loads = std::make_shared<IoPool>(pool);
    context->control = std::make_shared<IoPool>(pool);
    context->catalog = std::make_shared<Catalog>(catalog_file.fd(), 65536, 7);
    context->segments = std::make_shared<SegmentTable>(context->files);
  }
  ~ReadFixture() {
    fake.plan->Release();
    context->loads->Stop(10'000);
    context->control->Stop(10'000);
  }

  MadeSegment NewSegment(uint64_t number = 7) const {
    return MadeSegment(MakeIdentity(options.chunk_bytes, number));
  }
  static std::string PathOf(const Segment& segment) {
    return segment.directory + "/" + SegmentName(segment.identity.number);
  }
  // Puts it on the medium and its records into the catalog.
  std::shared_ptr<Segment> Publish(const MadeSegment& made) {
    const SegmentIdentity& identity = made.identity;
    const std::string directory = "v1/" + HexId(identity.namespace_id) + "/hosts/" + HexId(identity.host_id);
    std::shared_ptr<Segment> segment = context->segments->Add(identity, directory, /*own=*/true);
    CHECK(segment != nullptr);
    fake.memory->Put(PathOf(*segment), made.file);
    for (const IndexEntry& entry : made.entries) {
      CHECK(context->catalog->Add(CatalogKeyOf(identity, entry), WhereOf(*segment, entry)) ==
            Catalog::Added::kNew);
    }
    return segment;
  }
  static CatalogKey CatalogKeyOf(const SegmentIdentity& identity, const IndexEntry& entry) {
    return MakeCatalogKey(identity.namespace_id, tpu_sync_native::KeyOf(entry));
  }
  static Where WhereOf(const Segment& segment, const IndexEntry& entry) {
    return {segment.id, entry.offset, uint64_t{entry.stored_units} * kStorageUnit};
  }
  bool Knows(const MadeSegment& made, size_t record) const {
    return context->catalog->Find(CatalogKeyOf(made.identity, made.entries[record])) != 0;
  }
  std::vector<ReadCall> TakeReads() {
    const std::lock_guard lock(mutex);
    return std::exchange(reads, {});
  }
  void OnRead(std::function<IoError(const ReadCall&)> hook) {
    const std::lock_guard lock(mutex);
    on_read = std::move(hook);
  }

  const ReadOptions options;
  std::mutex mutex;
  std::vector<ReadCall> reads;                      // guarded by mutex, as the next
  std::function<IoError(const ReadCall&)> on_read;  // may block; what it answers comes of the read
  FakeFiles fake;
  MemFile catalog_file{"catalog"};
  std::shared_ptr<StorageContext> context = std::make_shared<StorageContext>();
};

// The bytes of the chunk that a test stores under a number.
inline std::string PayloadOf(uint64_t number, uint64_t bytes) {
  Random random(number + 1);
  return RandomBytes(random, bytes);
}

}  // namespace tpu_sync_native::testing
