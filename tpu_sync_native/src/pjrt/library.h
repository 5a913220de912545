// A PJRT plugin: found, checked, and called.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "pjrt/api.h"

namespace tpu_sync_native::pjrt {

class Library {
 public:
  // The plugin at `path`, which is taken as it is when the process has loaded it already and stays loaded for
  // good. Throws std::runtime_error naming the path and what is wrong.
  static std::shared_ptr<const Library> Open(const std::string& path);
  // What GetPjrtApi of a plugin of this process answered. Throws as Open does.
  static std::shared_ptr<const Library> Adopt(const Api* api);

  // Calls the slot of `args`. Empty when it succeeded, else the error's text.
  template <typename Args>
  [[nodiscard]] std::string Try(Args* args) const {
    void* const function = Slot(Args::kCall.slot);
    if (function == nullptr) return std::string(Args::kCall.name) + " is not in this plugin";
    return Text(Args::kCall.name, reinterpret_cast<Error* (*)(Args*)>(function)(args));
  }
  // The text of an error that `call` answered, which is destroyed; empty when it is null.
  std::string Text(const char* call, Error* error) const;

  const RawBufferExtension& raw() const { return *raw_; }
  // "0.115"
  const std::string& version() const { return version_; }

 private:
  Library(const Api* api, const std::string& where);
  // Null where the plugin is older than the slot.
  void* Slot(size_t slot) const;
  const RawBufferExtension* FindRawBuffer(const std::string& where) const;

  const Api* api_;
  const RawBufferExtension* raw_ = nullptr;
  std::string version_;
};

}  // namespace tpu_sync_native::pjrt
