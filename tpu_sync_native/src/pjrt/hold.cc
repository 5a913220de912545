#include "pjrt/hold.h"

#include <mutex>
#include <utility>

#include "pjrt/event.h"

namespace tpu_sync_native::pjrt {

struct Hold::Fence {
  std::mutex mutex;
  uint64_t pending = 1;  // events to come; one is the hold's own, until it has asked for all
  std::string failure;
  std::vector<std::function<void()>> waiting;

  void Add() {
    const std::lock_guard lock(mutex);
    ++pending;
  }

  void Came(const std::string& error) {
    std::vector<std::function<void()>> told;
    {
      const std::lock_guard lock(mutex);
      if (failure.empty()) failure = error;
      if (--pending == 0) told.swap(waiting);
    }
    for (const auto& tell : told) tell();
  }
};

Hold::Hold() : fence_(std::make_shared<Fence>()) {}

std::shared_ptr<Hold> Hold::Take(const std::shared_ptr<const Library>& library,
                                 std::span<const uint64_t> buffers, std::string* error) {
  const std::shared_ptr<Hold> hold(new Hold());
  hold->aliases_.reserve(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    auto* const buffer = reinterpret_cast<Buffer*>(buffers[i]);
    *error = buffer == nullptr ? "null" : "";
    std::unique_ptr<RawAlias> alias;
    if (error->empty()) alias = RawAlias::Take(library, buffer, error);
    BufferReadyEvent ready;
    ready.buffer = buffer;
    if (error->empty()) *error = library->Try(&ready);
    if (error->empty() && ready.event == nullptr) *error = "it has no ready event";
    if (error->empty()) {
      hold->fence_->Add();
      *error = OnReadyOrRefused(library, ready.event,
                                [fence = hold->fence_](const std::string& failed) { fence->Came(failed); });
    }
    if (!error->empty()) {
      *error = "buffer " + std::to_string(i) + ": " + *error;
      return nullptr;
    }
    hold->aliases_.push_back(std::move(alias));
  }
  hold->fence_->Came({});
  return hold;
}

bool Hold::Ready() const {
  const std::lock_guard lock(fence_->mutex);
  return fence_->pending == 0;
}

void Hold::OnReady(std::function<void()> ready) {
  {
    const std::lock_guard lock(fence_->mutex);
    if (fence_->pending != 0) {
      fence_->waiting.push_back(std::move(ready));
      return;
    }
  }
  ready();
}

uint64_t Hold::BufferBytes(uint64_t ordinal) const {
  return ordinal < aliases_.size() ? aliases_[ordinal]->bytes() : 0;
}

std::string Hold::failure() const {
  const std::lock_guard lock(fence_->mutex);
  return fence_->failure;
}

}  // namespace tpu_sync_native::pjrt
