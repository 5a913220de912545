// A tier below whose promotes end when the test says so.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store_fixture.h"

namespace tpu_sync_native::testing {

class FakeLowerTier final : public LowerTier {
 public:
  struct Offered {
    uint32_t ns;
    PromoteChunk chunk;
    Urgency urgency;
    std::string key() const { return {reinterpret_cast<const char*>(chunk.key), chunk.key_bytes}; }
  };

  uint32_t Find(uint32_t ns, const KeyBatch& keys, uint32_t first, Location* where) const override {
    const std::lock_guard lock(mutex_);
    ++finds_;
    for (uint32_t i = first; i < keys.count; ++i) {
      const auto found = held_.find({ns, std::string(keys.at(i))});
      where[i - first] = found == held_.end() ? 0 : found->second;
      if (found == held_.end()) return i - first;
    }
    return keys.count - first;
  }
  bool Promote(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency) override {
    const std::lock_guard lock(mutex_);
    CHECK(!chunks.empty());
    if (refusing_) return false;
    for (const PromoteChunk& chunk : chunks) offered_.push_back({ns, chunk, urgency});
    return true;
  }
  void Committed(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots) override {
    const std::lock_guard lock(mutex_);
    CHECK(!slots.empty());
    committed_.push_back({ns, epoch, {slots.begin(), slots.end()}});
  }

  // What it holds stays, unlike a real one's; the test sees the call.
  void Cleared(uint32_t ns) override {
    const std::lock_guard lock(mutex_);
    cleared_.push_back(ns);
  }

  uint64_t EpochWord(uint32_t) const override {
    const std::lock_guard lock(mutex_);
    return epoch_word_;
  }
  void SayEpoch(uint64_t word) {
    const std::lock_guard lock(mutex_);
    epoch_word_ = word;
  }

  void Put(uint32_t ns, uint64_t first, uint32_t count, uint32_t bytes = 32) {
    const std::lock_guard lock(mutex_);
    for (uint32_t i = 0; i < count; ++i) held_[{ns, KeyOf(first + i, bytes)}] = 1000 + first + i;
  }
  void Drop(uint32_t ns, uint64_t number) {
    const std::lock_guard lock(mutex_);
    held_.erase({ns, KeyOf(number)});
  }
  void Refuse(bool refusing) {
    const std::lock_guard lock(mutex_);
    refusing_ = refusing;
  }
  // What was offered since the last call, in order.
  std::vector<Offered> TakeOffered() {
    const std::lock_guard lock(mutex_);
    return std::exchange(offered_, {});
  }
  struct CommittedCall {
    uint32_t ns, epoch;
    std::vector<uint32_t> slots;
  };
  std::vector<CommittedCall> TakeCommitted() {
    const std::lock_guard lock(mutex_);
    return std::exchange(committed_, {});
  }
  std::vector<uint32_t> TakeCleared() {
    const std::lock_guard lock(mutex_);
    return std::exchange(cleared_, {});
  }
  uint64_t finds() const {
    const std::lock_guard lock(mutex_);
    return finds_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<uint32_t, std::string>, Location> held_;
  std::vector<Offered> offered_;
  std::vector<CommittedCall> committed_;
  std::vector<uint32_t> cleared_;
  mutable uint64_t finds_ = 0;
  bool refusing_ = false;
  uint64_t epoch_word_ = 0;
};

}  // namespace tpu_sync_native::testing
