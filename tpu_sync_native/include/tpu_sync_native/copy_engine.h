// Copies between device blocks and arena slots, on the engine's own threads.
//
// A job is one batch: blocks of the device (ids), the place of each in the job's chunks (positions) and the
// chunks' slots. It is validated in Submit, on the caller's thread, and expanded into extents by the threads
// that copy it, so that submitting costs the caller next to nothing.
//
//   device (a layout)                          slot (one chunk, blocks_per_chunk = 3)
//   region 0: |b0|b1|b2|b3|b4|...              |r0 b0|r0 b1|r0 b2|r1 b0|r1 b1|r1 b2|
//   region 1: |b0|b1|b2|b3|b4|...               ^ chunk_offset
//
// Pages that are neighbours on both sides are copied as one run. A large job is cut into pieces by bytes, and
// every thread takes the next piece; between two pieces a waiting load goes before any store.
//
// A slot may be taken away while it is copied (its lease expired, the daemon restarted). Every piece
// therefore asks the SlotGuard before and after its bytes move: a chunk is valid when every answer was yes,
// and a job is ok when all of its chunks are valid. Bytes copied from an invalid slot are in the device's
// blocks and are meaningless: the caller recomputes them. The guard also knows how large a slot's chunk is,
// so that no layout reaches into the slot beside it.
//
// A load may begin while chunks of it are still on their way from storage. Its pieces are copied in order, up
// to the first chunk that is not ready; there the job waits, others pass it, and it goes on as soon as that
// chunk is ready. So the first chunks are on the device while the last ones are still being read. A chunk for
// which a load has waited ready_deadline_ms is lost, and so is what is pending behind it; a load of which
// some chunk comes in time goes on, however long all of it takes.
//
// On a device whose buffers move (CopyCapabilities), a job holds the buffers that Submit names. It is copied
// when what the device does with them is done; nobody waits for that, and others pass it. Where a step puts
// another buffer in a buffer's place, loads go on in load windows only.
//
// Threads: every method is thread-safe. A forked child must not use its parent's engine (usable_here()).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tpu_sync_native/readiness.h"

namespace tpu_sync_native {

enum class CopyDirection : uint8_t { kStore = 0, kLoad = 1 };  // device -> slot, slot -> device

// Whether a slot is still what the lease said. Thread-safe.
class SlotGuard {
 public:
  virtual ~SlotGuard() = default;
  // Still of this generation; for a store also not readable yet. Asked by the engine's threads, per chunk and
  // piece.
  virtual bool Unchanged(uint32_t slot, uint32_t generation, CopyDirection direction) const = 0;
  // Bytes of the chunk in the slot, which is at `offset` in the arena; 0 when the slot is not, or is not of
  // this generation any more. Asked by Submit, per chunk.
  virtual uint64_t ChunkBytes(uint32_t slot, uint32_t generation, uint64_t offset) const = 0;

  // ---- loads that wait; the defaults are for slots that are never pending ----
  // Asked for the chunks of a load, by Submit and until it is not kPending.
  virtual Readiness ReadinessOf(uint32_t /*slot*/, uint32_t /*generation*/) const {
    return Readiness::kReady;
  }
  // Changes whenever a slot may have stopped to be pending.
  virtual uint32_t Events() const { return 0; }
  // Sleeps while Events() is `seen`, at most until the time of the steady clock. May return earlier.
  virtual void AwaitEvent(uint32_t /*seen*/, uint64_t /*deadline_ns*/) const {}
  // Lets AwaitEvent return, if it can: somebody has to be told something else.
  virtual void Interrupt() const {}
  // Whoever makes slots ready is gone: what is pending stays pending.
  virtual bool Abandoned() const { return false; }
};

// Where device memory has no addresses that last, a device address is a buffer's ordinal (as of
// CopyRequest::buffers) shifted by this, plus an offset in bytes.
inline constexpr unsigned kDeviceBufferShift = 44;

// One tensor's blocks: block b lies at address + b * stride_bytes and is page_bytes long.
struct CopyRegion {
  uint64_t address = 0;  // in the backend's address space; for the host backend a pointer
  uint64_t stride_bytes = 0;
  uint64_t page_bytes = 0;
};

struct CopyLayoutSpec {
  std::vector<CopyRegion> regions;
  uint64_t num_blocks = 0;
  uint32_t blocks_per_chunk = 0;
  uint64_t chunk_offset = 0;  // where this worker's part starts in a slot
};

// Borrowed for the call of Submit. layouts and group_sizes have one entry per group; block_ids and
// block_positions hold the groups one after another; slots, generations and offsets have one entry per chunk.
// A position is chunk ordinal * blocks_per_chunk + block within the chunk. A chunk need not be covered whole.
struct CopyRequest {
  uint64_t job = 0;
  CopyDirection direction = CopyDirection::kStore;
  std::span<const int64_t> layouts;
  std::span<const int64_t> group_sizes;
  std::span<const int64_t> block_ids;
  std::span<const int64_t> block_positions;
  std::span<const uint32_t> slots;
  std::span<const uint32_t> generations;
  std::span<const uint64_t> offsets;  // bytes into the arena
  // With capabilities.buffers: what the device's runtime calls each buffer at this moment, by ordinal. Held
  // until the job ends, which is before it is reported. Loads that are copied in load windows need none.
  std::span<const uint64_t> buffers = {};
  // With capabilities.streams: the stream the engine uses these blocks on, as the device's runtime calls it
  // (its default one may be 0). The job is copied when what was launched on it before Submit is done. None:
  // nothing uses them any more.
  std::optional<uint64_t> stream = std::nullopt;
};

struct CopyCompletion {
  uint64_t job = 0;
  bool ok = false;
  uint64_t bytes = 0;         // moved, those of invalid chunks left out
  double seconds = 0;         // from Submit to the last byte
  uint32_t chunks_valid = 0;  // leading chunks that were valid
};

struct CopyCounters {
  uint64_t store_jobs, store_bytes, load_jobs, load_bytes;
  uint64_t failed_jobs;
  uint64_t load_waits;       // times a load had to wait for its next chunk
  uint64_t fence_waits;      // jobs that had to wait for what the device was doing
  uint64_t refused_holds;    // buffers that the device did not know any more
  uint64_t load_windows;     // that were opened
  uint64_t late_windows;     // whose pieces did not land in time: their loads failed
  uint64_t unready_windows;  // that did not open: a step had the buffers all the time
  uint64_t extents;          // after coalescing
  uint64_t cpu_ns;           // of the engine's threads
};

// What a backend can do; true means more. A caller asks instead of knowing names.
struct CopyCapabilities {
  std::string name;
  std::string kernel;               // what moves large extents
  uint64_t alignment_bytes = 1;     // of device addresses and lengths
  uint64_t piece_bytes_max = 0;     // larger pieces would delay what queues behind them; 0: no limit
  uint64_t inflight_bytes_max = 0;  // given to the device at once, all threads together; 0: no limit
  bool plain_memory = false;        // device addresses are pointers of this process
  bool buffers = false;             // device addresses name a buffer and an offset (kDeviceBufferShift)
  // A step may put another buffer in a buffer's place, and what is written into the old one is lost: loads
  // are copied between steps only (LoadWindow).
  bool replaces_buffers = false;
  // Copies and launches pass one queue of the device in order: a copy that was given to it is done before
  // whatever is launched later.
  bool in_order_queue = false;
  // Engines launch on streams: a job may name the one it has to wait for.
  bool streams = false;
};

class CopyBackend;

struct CopyEngineOptions {
  int threads = 0;  // 0: half the cores, 1 to 4
  uint8_t* arena = nullptr;
  uint64_t arena_bytes = 0;
  // Null: every slot counts as unchanged and as large as it must be (tests and benchmarks on plain memory).
  std::shared_ptr<const SlotGuard> guard = nullptr;
  std::shared_ptr<CopyBackend> backend = nullptr;  // null: the host backend
  // A load that has waited so long for its next chunk loses what is pending. A job that has waited so long
  // for its fence fails, and a load that no window has come for loses what is not copied.
  uint64_t ready_deadline_ms = 10'000;
  // How long a load window, or a Close, waits for the pieces under way when its time is over.
  uint64_t landing_deadline_ms = 2'000;
};

class CopyEngine {
 public:
  // Throws std::invalid_argument naming the option. Memory behind `arena` must outlive the engine, and what a
  // Close has given up (`guard` and `backend` do).
  explicit CopyEngine(const CopyEngineOptions& options);
  // Close(), unless one has given up. In a forked child it lets go of everything without touching it.
  ~CopyEngine();

  // Geometry of one KV group; returns its id. Throws std::invalid_argument.
  int AddLayout(const CopyLayoutSpec& spec);
  // Bytes a chunk of this layout takes in a slot, chunk_offset left out.
  uint64_t LayoutChunkBytes(int layout) const;

  // Queues a job. Throws std::invalid_argument (a job id still in flight, an id, position, offset or length
  // out of bounds, a layout larger than the chunk of a slot) and std::runtime_error after Close or in a
  // forked child; then nothing was queued.
  void Submit(const CopyRequest& request);
  // With capabilities.replaces_buffers: copies what can be copied of the loads into the buffers as they are
  // now, for at most so long; called between two steps by whoever owns the tensors. The time includes the
  // wait for what the device still does with these buffers; at least one piece is copied when that has come
  // to an end. True: no load is left that could go on. False: there is, or the buffers could not be had in
  // time. Returns when all that was begun has landed; a load of which a piece has not landed
  // landing_deadline_ms after the window's time has failed, and is reported when nothing of it can land any
  // more. Throws std::invalid_argument when a layout's blocks do not lie in the buffers. One atomic load when
  // no load waits, and on any other device, whose loads need no window.
  bool LoadWindow(std::span<const uint64_t> buffers, double seconds);
  // Whether LoadWindow would have something to do.
  bool LoadsAwaitWindow() const;
  // Finished jobs since the last call. One atomic load when there is none.
  std::vector<CopyCompletion> Poll();
  // Until none of these jobs is in flight; false when the time is over first. They are still reported by
  // Poll.
  bool Wait(std::span<const uint64_t> jobs, double timeout_s);
  // Copies (source, target, bytes) rows on all threads and returns when done. For benchmarks and tests.
  // Throws std::runtime_error when the engine is closed before that.
  void Copy(std::span<const uint64_t> rows);

  uint64_t pending() const;
  int threads() const;
  CopyCounters counters() const;
  const CopyCapabilities& capabilities() const;
  // False in a forked child.
  bool usable_here() const;
  // Finishes what was submitted and joins the threads; nothing waits any more for pending chunks, a fence or
  // a load window. With a time, what is not begun when it is over is lost, and where the pieces under way
  // have not landed landing_deadline_ms later they are given up (docs/decisions/0034): their jobs have failed
  // and are reported, the threads are left to themselves. False: so it is, see Unlanded. Idempotent; another
  // call waits again.
  bool Close(std::optional<double> timeout_s = std::nullopt);
  // The jobs that were given up and may still be written to by the device: a store's slots must not be given
  // to anybody else yet, nor a load's blocks.
  std::vector<uint64_t> Unlanded() const;
  // The stores among them, of all engines of this process, also of those that are gone.
  static uint64_t UnlandedStores();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // and its threads', which may outlive the engine
};

}  // namespace tpu_sync_native
