#include "pjrt/library.h"

#include <dlfcn.h>

#include <stdexcept>

namespace tpu_sync_native::pjrt {
namespace {

constexpr int32_t kMajor = 0;
// As of this size its functions are those declared here; larger ones have more behind them.
constexpr size_t kRawBufferBytesMin = 80;
constexpr int kExtensionsMax = 1000;  // a longer list is a ring

[[noreturn]] void Refuse(const std::string& where, const std::string& what) {
  throw std::runtime_error("PJRT plugin " + where + ": " + what);
}

}  // namespace

std::shared_ptr<const Library> Library::Open(const std::string& path) {
  if (path.empty()) throw std::runtime_error("PJRT plugin: no library is named");
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    Refuse(path, reason != nullptr ? reason : "cannot be loaded");
  }
  void* const entry = dlsym(handle, "GetPjrtApi");
  if (entry == nullptr) Refuse(path, "has no GetPjrtApi");
  return std::shared_ptr<const Library>(new Library(reinterpret_cast<const Api* (*)()>(entry)(), path));
}

std::shared_ptr<const Library> Library::Adopt(const Api* api) {
  return std::shared_ptr<const Library>(new Library(api, "of this process"));
}

Library::Library(const Api* api, const std::string& where) : api_(api) {
  if (api == nullptr) Refuse(where, "GetPjrtApi answered null");
  if (api->struct_size < sizeof(Api)) {
    Refuse(where, "its table of " + std::to_string(api->struct_size) + " bytes is too small to be one");
  }
  version_ = std::to_string(api->version.major) + "." + std::to_string(api->version.minor);
  if (api->version.major != kMajor) {
    Refuse(where, "speaks version " + version_ + ", known is " + std::to_string(kMajor) + ".x");
  }
  for (const Call& call :
       {ErrorDestroy::kCall, ErrorMessage::kCall, EventDestroy::kCall, EventAwait::kCall, EventOnReady::kCall,
        BufferOnDeviceSize::kCall, BufferIsDeleted::kCall, BufferReadyEvent::kCall}) {
    if (Slot(call.slot) == nullptr) Refuse(where, std::string("version ") + version_ + " lacks " + call.name);
  }
  raw_ = FindRawBuffer(where);
}

void* Library::Slot(size_t slot) const {
  if (sizeof(Api) + (slot + 1) * sizeof(void*) > api_->struct_size) return nullptr;
  return api_->slots()[slot];
}

// Without it there is neither a way to write into a buffer in place nor one to keep its memory once the
// engine has let go of it.
const RawBufferExtension* Library::FindRawBuffer(const std::string& where) const {
  const Extension* extension = api_->extensions;
  for (int i = 0; extension != nullptr && i < kExtensionsMax; ++i, extension = extension->next) {
    if (extension->type != kRawBufferExtensionType) continue;
    if (extension->struct_size < kRawBufferBytesMin) {
      Refuse(where, "its RawBuffer extension has " + std::to_string(extension->struct_size) +
                        " bytes, known are " + std::to_string(kRawBufferBytesMin) + " and more");
    }
    const auto* raw = reinterpret_cast<const RawBufferExtension*>(extension);
    if (raw->create_alias == nullptr || raw->destroy == nullptr || raw->copy_host_to_device == nullptr ||
        raw->copy_device_to_host == nullptr) {
      Refuse(where, "its RawBuffer extension lacks a function");
    }
    return raw;
  }
  Refuse(where, "version " + version_ +
                    " has no RawBuffer extension, so buffers cannot be written in place nor kept");
}

std::string Library::Text(const char* call, Error* error) const {
  if (error == nullptr) return {};
  ErrorMessage message;
  message.error = error;
  reinterpret_cast<void (*)(ErrorMessage*)>(Slot(ErrorMessage::kCall.slot))(&message);
  std::string text = std::string(call) + ": " + std::string(message.message, message.message_size);
  ErrorDestroy destroy;
  destroy.error = error;
  reinterpret_cast<void (*)(ErrorDestroy*)>(Slot(ErrorDestroy::kCall.slot))(&destroy);
  return text;
}

}  // namespace tpu_sync_native::pjrt
