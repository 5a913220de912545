// The memory of a PJRT buffer, held by an alias of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "copy/backend.h"
#include "pjrt/library.h"

namespace tpu_sync_native::pjrt {

class RawAlias {
 public:
  // Null and a text when the buffer is deleted (donated buffers are) or the runtime refuses.
  static std::unique_ptr<RawAlias> Take(std::shared_ptr<const Library> library, Buffer* buffer,
                                        std::string* error);
  ~RawAlias();
  RawAlias(const RawAlias&) = delete;
  RawAlias& operator=(const RawAlias&) = delete;

  uint64_t bytes() const { return bytes_; }
  // Gives a copy of [offset, offset + bytes), which must lie within bytes(), to the device. Null and a text
  // when it refuses.
  Event* Copy(CopyDirection direction, uint8_t* host, uint64_t offset, uint64_t bytes,
              std::string* error) const;

 private:
  RawAlias(std::shared_ptr<const Library> library, RawBuffer* raw, uint64_t bytes);

  const std::shared_ptr<const Library> library_;
  RawBuffer* const raw_;
  const uint64_t bytes_;
};

}  // namespace tpu_sync_native::pjrt
