// What goes wrong, planted by a test: errors on the nth matching call, torn appends, short reads, latency,
// hangs that last until Release(), directory listings of yesterday.
#pragma once

#include <fnmatch.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hooked_files.h"

namespace tpu_sync_native::testing {

struct Fault {
  uint32_t ops = kOpsAll;
  std::string pattern = "*";  // fnmatch on the path; '*' also matches '/'
  int skip = 0;               // matching calls that go well first
  int times = 1;              // then this many do not; -1: all
  int error = 0;              // an errno or IoError::kShort; 0: the call goes well (a mere hang or latency)
  std::optional<uint64_t> bytes_done{};  // with an error: after this many bytes (torn append, short read)
  uint32_t latency_ms = 0;
  bool hang = false;  // until Release()
};

class FaultPlan {
 public:
  // Returns a number for hits().
  size_t Add(Fault fault) {
    const std::lock_guard lock(mutex_);
    faults_.push_back({std::move(fault), 0, 0});
    return faults_.size() - 1;
  }
  // No fault from now on; who hangs goes on.
  void Clear() {
    const std::lock_guard lock(mutex_);
    for (Planted& planted : faults_) planted.fault.times = 0;
    listings_.clear();
    ReleaseLocked();
  }
  // Who hangs goes on, and nobody hangs any more.
  void Release() {
    const std::lock_guard lock(mutex_);
    ReleaseLocked();
  }
  int hits(size_t fault) const {
    const std::lock_guard lock(mutex_);
    return faults_[fault].hit;
  }
  // Until this many calls hang; false after 10 s.
  bool WaitHanging(int calls) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return hanging_ >= calls; });
  }
  int hanging() const {
    const std::lock_guard lock(mutex_);
    return hanging_;
  }
  // The next `calls` listings of each directory that matches answer what its last listing before answered (an
  // empty one, if there was none).
  void StaleListings(const std::string& pattern, int calls) {
    const std::lock_guard lock(mutex_);
    stale_pattern_ = pattern;
    stale_calls_ = calls;
    stale_left_.clear();
  }

  FileVerdict Before(const FileCall& call) {
    std::unique_lock lock(mutex_);
    FileVerdict verdict;
    uint32_t latency_ms = 0;
    for (Planted& planted : faults_) {
      const Fault& fault = planted.fault;
      if ((fault.ops & call.op) == 0 || fault.times == 0 || !Matches(fault.pattern, call)) continue;
      if (planted.seen++ < fault.skip) continue;
      if (fault.times > 0 && planted.hit >= fault.times) continue;
      ++planted.hit;
      latency_ms += fault.latency_ms;
      if (fault.error != 0 && verdict.error.ok()) {
        verdict.error.code = fault.error;
        verdict.bytes_done = fault.bytes_done;
      }
      if (fault.hang) Hang(lock);
    }
    if (call.op == kOpList && stale_calls_ != 0 &&
        fnmatch(stale_pattern_.c_str(), call.path.c_str(), 0) == 0) {
      int& left = stale_left_.try_emplace(call.path, stale_calls_).first->second;
      if (left != 0) {
        --left;
        verdict.listing = listings_[call.path];
      }
    }
    lock.unlock();
    // This is the medium's own slowness, nothing waits for it here.
    if (latency_ms != 0) std::this_thread::sleep_for(std::chrono::milliseconds(latency_ms));
    return verdict;
  }

  void Listed(const FileCall& call, const std::vector<DirEntry>& entries) {
    const std::lock_guard lock(mutex_);
    listings_[call.path] = entries;
  }

 private:
  struct Planted {
    Fault fault;
    int seen;
    int hit;
  };

  static bool Matches(const std::string& pattern, const FileCall& call) {
    return fnmatch(pattern.c_str(), call.path.c_str(), 0) == 0 ||
           (!call.to.empty() && fnmatch(pattern.c_str(), call.to.c_str(), 0) == 0);
  }
  void Hang(std::unique_lock<std::mutex>& lock) {
    const uint64_t release = releases_;
    ++hanging_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return releases_ != release; });
    --hanging_;
    changed_.notify_all();
  }
  void ReleaseLocked() {
    ++releases_;
    for (Planted& planted : faults_) {
      if (planted.fault.hang) planted.fault.times = 0;
    }
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Planted> faults_;                             // Add keeps references valid, for those that hang
  std::map<std::string, std::vector<DirEntry>> listings_;  // as last answered
  std::map<std::string, int> stale_left_;
  std::string stale_pattern_;
  int stale_calls_ = 0;
  uint64_t releases_ = 0;
  int hanging_ = 0;
};

// Any file system with planted faults.
inline std::shared_ptr<FileSystem> WithFaults(std::shared_ptr<FileSystem> below,
                                              std::shared_ptr<FaultPlan> plan) {
  FileHooks hooks;
  hooks.before = [plan](const FileCall& call) { return plan->Before(call); };
  hooks.listed = [plan](const FileCall& call, std::vector<DirEntry>& entries) {
    plan->Listed(call, entries);
  };
  return std::make_shared<HookedFiles>(std::move(below), std::move(hooks));
}

}  // namespace tpu_sync_native::testing
