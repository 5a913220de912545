// Load windows: loads onto a device that replaces buffers, between two steps (docs/decisions/0016).
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "base/futex.h"
#include "copy/engine_impl.h"

namespace tpu_sync_native {
namespace {

using Clock = std::chrono::steady_clock;

bool AwaitReady(CopyHold* hold, Clock::time_point deadline) {
  if (hold->Ready()) return true;
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    bool ready = false;
  };
  const auto signal = std::make_shared<Signal>();  // the call may come when nobody waits any more
  hold->OnReady([signal] {
    const std::lock_guard lock(signal->mutex);
    signal->ready = true;
    signal->changed.notify_all();
  });
  std::unique_lock lock(signal->mutex);
  return signal->changed.wait_until(lock, deadline, [&] { return signal->ready; });
}

}  // namespace

bool CopyEngine::LoadsAwaitWindow() const { return impl_->queues.loads_await_window(); }

bool CopyEngine::LoadWindow(std::span<const uint64_t> buffers, double seconds) {
  impl_->RequireUsable();
  if (!LoadsAwaitWindow()) return true;
  const auto after = [](double s) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
  };
  const Clock::time_point deadline = after(std::clamp(seconds, 0.0, 60.0));
  std::shared_ptr<CopyHold> hold = impl_->options.backend->Hold(buffers);
  LayoutList layouts;
  {
    Impl::Lock lock(impl_->mutex);
    if (impl_->queues.hung()) {  // the engine's threads, who keep the deadlines, may all be stuck
      impl_->EndAllLocked(lock, impl_->queues.TakeExpired(SteadyNs()));
      return false;
    }
    if (hold == nullptr) ++impl_->totals.refused_holds;
    layouts = impl_->layouts;
  }
  if (hold == nullptr) return false;
  impl_->RequireBuffersFit(layouts, *hold);
  const bool ready = AwaitReady(hold.get(), deadline);

  Impl::Lock lock(impl_->mutex);
  if (!ready) {
    ++impl_->totals.unready_windows;
    return false;
  }
  JobQueues& queues = impl_->queues;
  if (impl_->stopping || queues.window_open()) return false;
  const auto deadline_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch());
  queues.OpenWindow(std::move(hold), static_cast<uint64_t>(deadline_ns.count()));
  ++impl_->totals.load_windows;
  impl_->work.notify_all();
  const auto over = [&] { return impl_->stopping || queues.window_idle(); };
  impl_->window_changed.wait_until(lock, deadline, over);
  // One piece at least: windows that are too short for the threads to wake in must not starve a load.
  const Clock::time_point landing_deadline =
      std::max(deadline, Clock::now()) + std::chrono::milliseconds(impl_->options.landing_deadline_ms);
  impl_->window_changed.wait_until(lock, landing_deadline,
                                   [&] { return over() || queues.window_pieces() != 0; });
  hold = queues.CloseWindow();
  if (!impl_->window_changed.wait_until(lock, landing_deadline, [&] { return queues.window_landed(); })) {
    ++impl_->totals.late_windows;
    queues.LoseUnderWay();
  }
  const bool all = !queues.loads_await_window();
  lock.unlock();
  impl_->work.notify_one();  // whoever sleeps keeps the new deadlines
  hold.reset();
  return all;
}

}  // namespace tpu_sync_native
