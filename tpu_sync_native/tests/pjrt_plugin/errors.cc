// Errors of the plugin's own beside those of the wrapped plugin.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "base.h"

namespace tpu_sync_native::test_plugin {
namespace {

constexpr int32_t kInternal = 13;

struct OwnError {
  const char* text;
};

std::mutex& OwnMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::set<const pjrt::Error*>& Own() {
  static auto* const own = new std::set<const pjrt::Error*>;
  return *own;
}

const OwnError* AsOwn(const pjrt::Error* error) {
  const std::lock_guard lock(OwnMutex());
  return Own().contains(error) ? reinterpret_cast<const OwnError*>(error) : nullptr;
}

// These two answer nothing.
template <typename Args>
void CallBaseAboutError(Args* args) {
  reinterpret_cast<void (*)(Args*)>(base()->slots()[Args::kCall.slot])(args);
}

void Destroy(pjrt::ErrorDestroy* args) {
  if (const OwnError* own = AsOwn(args->error)) {
    const std::lock_guard lock(OwnMutex());
    Own().erase(args->error);
    --counters().errors;
    delete own;
    return;
  }
  CallBaseAboutError(args);
}

void Message(pjrt::ErrorMessage* args) {
  if (const OwnError* own = AsOwn(args->error)) {
    args->message = own->text;
    args->message_size = std::strlen(own->text);
    return;
  }
  CallBaseAboutError(args);
}

pjrt::Error* GetCode(pjrt::ErrorGetCode* args) {
  if (AsOwn(args->error) == nullptr) return CallBase(args);
  args->code = kInternal;
  return nullptr;
}

pjrt::Error* ForEachPayload(pjrt::ErrorForEachPayload* args) {
  return AsOwn(args->error) == nullptr ? CallBase(args) : nullptr;
}

}  // namespace

pjrt::Error* MakeError(const char* text) {
  auto* const error = reinterpret_cast<pjrt::Error*>(new OwnError{text});
  const std::lock_guard lock(OwnMutex());
  Own().insert(error);
  ++counters().errors;
  return error;
}

void DestroyBaseError(pjrt::Error* error) {
  pjrt::ErrorDestroy destroy;
  destroy.error = error;
  CallBaseAboutError(&destroy);
}

void Must(pjrt::Error* error) {
  if (error == nullptr) return;
  pjrt::ErrorMessage message;
  message.error = error;
  Message(&message);
  std::fprintf(stderr, "the PJRT test plugin cannot go on: %.*s\n", static_cast<int>(message.message_size),
               message.message);
  std::abort();
}

void ReplaceErrors(void** slots) {
  slots[pjrt::ErrorDestroy::kCall.slot] = reinterpret_cast<void*>(&Destroy);
  slots[pjrt::ErrorMessage::kCall.slot] = reinterpret_cast<void*>(&Message);
  slots[pjrt::ErrorGetCode::kCall.slot] = reinterpret_cast<void*>(&GetCode);
  slots[pjrt::ErrorForEachPayload::kCall.slot] = reinterpret_cast<void*>(&ForEachPayload);
}

}  // namespace tpu_sync_native::test_plugin
