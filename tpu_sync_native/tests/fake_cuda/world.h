// What the fake driver's functions act on.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fake_cuda.h"

namespace tpu_sync_native::testing {

struct FakeEvent {
  uint64_t recorded = 0;  // times
  uint64_t passed = 0;    // the last of them that its stream has reached
};

struct FakeStream {
  std::deque<std::function<void()>> work;
  bool running = false;  // something taken from `work`
  bool closed = false;
};

enum class Spoils : bool { kNothing, kCapture };

// `mutex` guards everything; `changed` tells everybody.
class World final : public FakeCuda {
 public:
  using MutexLock = std::unique_lock<std::mutex>;
  // Around a fork.
  void Lock();
  void Unlock();

  // Before every call of the driver: counted, and refused where the driver would.
  cuda::Result Enter(const std::string& call, bool needs_context = true, Spoils spoils = Spoils::kNothing);

  cuda::Result CreateStream(cuda::Stream* stream);
  cuda::Result DestroyStream(cuda::Stream stream);
  cuda::Result QueryStream(cuda::Stream stream);
  cuda::Result AwaitStream(cuda::Stream stream);
  cuda::Result Enqueue(cuda::Stream stream, std::function<void()> work);
  cuda::Result CreateEvent(cuda::Event* event);
  cuda::Result DestroyEvent(cuda::Event event);
  cuda::Result RecordEvent(cuda::Event event, cuda::Stream stream);
  cuda::Result QueryEvent(cuda::Event event);
  cuda::Result AwaitEvent(cuda::Event event);
  cuda::Result LetWait(cuda::Stream stream, cuda::Event event);
  cuda::Result Pin(const uint8_t* memory, size_t bytes);
  cuda::Result Unpin(const uint8_t* memory);
  cuda::Result Allocate(cuda::DevicePtr* address, size_t bytes);
  cuda::Result Free(cuda::DevicePtr address);
  // Between host memory and the device. Of pageable memory it returns when the bytes have moved.
  cuda::Result CopyAsync(uint8_t* host, cuda::DevicePtr device, size_t bytes, bool to_host,
                         cuda::Stream stream);
  cuda::Result Retain(int by);
  int devices();

  void Reset() override;
  void SetDevices(int count) override;
  void FailOnce(const std::string& call, cuda::Result result, int after) override;
  void BreakContext(cuda::Result result) override;
  void RefusePins(bool refuse) override;
  void StopCopies(bool stop) override;
  void SetCopyTime(uint64_t microseconds) override;
  void CaptureElsewhere(bool capturing) override;
  void Launch(cuda::Stream stream, std::function<void()> kernel) override;
  uint8_t* Memory(cuda::DevicePtr address) override;
  uint64_t calls(const std::string& call) override;
  uint64_t unfinished_copies() override;
  uint64_t pageable_copies() override;
  uint64_t pinned_ranges() override;
  uint64_t live_streams() override;
  uint64_t live_events() override;
  int retained_contexts() override;
  size_t contexts_of_this_thread() override;
  bool this_thread_is_relaxed() override;

 private:
  struct Failure {
    cuda::Result result;
    int after;
  };

  FakeStream* FindLocked(cuda::Stream stream);
  void StartLocked(FakeStream* stream, std::shared_ptr<FakeStream> owned);
  void Run(const std::shared_ptr<FakeStream>& stream);
  void BreakLocked(cuda::Result result);
  bool PinnedLocked(const uint8_t* memory, size_t bytes) const;
  uint8_t* MemoryLocked(cuda::DevicePtr address, size_t bytes);
  void RunCopy(uint8_t* host, cuda::DevicePtr device, size_t bytes, bool to_host);

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  int devices_ = 1;
  int retained_ = 0;
  cuda::Result broken_ = cuda::kSuccess;
  bool refuse_pins_ = false;
  bool stop_copies_ = false;
  bool capturing_ = false;
  uint64_t copy_time_us_ = 0;
  uint64_t unfinished_copies_ = 0;
  uint64_t pageable_copies_ = 0;
  cuda::DevicePtr next_address_ = 1ULL << 46;  // no address of a process
  std::map<std::string, uint64_t> calls_;
  std::map<std::string, Failure> failures_;
  std::map<FakeStream*, std::shared_ptr<FakeStream>> streams_;
  std::shared_ptr<FakeStream> default_stream_;
  std::map<FakeEvent*, std::shared_ptr<FakeEvent>> events_;
  std::map<const uint8_t*, size_t> pinned_;
  std::map<cuda::DevicePtr, std::vector<uint8_t>> memory_;
};

World& TheWorld();

// The calling thread's own.
struct ThreadState {
  std::vector<cuda::Context> contexts;
  int capture_mode = 0;  // global
};
ThreadState& ThisThread();

}  // namespace tpu_sync_native::testing
