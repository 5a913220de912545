#include "pjrt/raw_buffer.h"

#include <utility>

namespace tpu_sync_native::pjrt {

std::unique_ptr<RawAlias> RawAlias::Take(std::shared_ptr<const Library> library, Buffer* buffer,
                                         std::string* error) {
  BufferIsDeleted deleted;
  deleted.buffer = buffer;
  *error = library->Try(&deleted);
  if (error->empty() && deleted.deleted) *error = "the buffer is deleted";
  if (!error->empty()) return nullptr;
  BufferOnDeviceSize size;
  size.buffer = buffer;
  *error = library->Try(&size);
  if (!error->empty()) return nullptr;
  RawCreateAlias alias;
  alias.buffer = buffer;
  *error = library->Text("PJRT_RawBuffer_CreateRawAliasOfBuffer", library->raw().create_alias(&alias));
  if (!error->empty()) return nullptr;
  return std::unique_ptr<RawAlias>(new RawAlias(std::move(library), alias.raw, size.bytes));
}

RawAlias::RawAlias(std::shared_ptr<const Library> library, RawBuffer* raw, uint64_t bytes)
    : library_(std::move(library)), raw_(raw), bytes_(bytes) {}

RawAlias::~RawAlias() {
  RawDestroy destroy;
  destroy.raw = raw_;
  // A refusal leaves memory with the runtime; there is nothing else that could be done with it.
  library_->Text("PJRT_RawBuffer_Destroy", library_->raw().destroy(&destroy));
}

Event* RawAlias::Copy(CopyDirection direction, uint8_t* host, uint64_t offset, uint64_t bytes,
                      std::string* error) const {
  RawCopy copy;
  copy.raw = raw_;
  copy.host = host;
  copy.offset = static_cast<int64_t>(offset);
  copy.bytes = static_cast<int64_t>(bytes);
  const RawBufferExtension& raw = library_->raw();
  if (direction == CopyDirection::kStore) {
    *error = library_->Text("PJRT_RawBuffer_CopyRawDeviceToHost", raw.copy_device_to_host(&copy));
  } else {
    *error = library_->Text("PJRT_RawBuffer_CopyRawHostToDevice", raw.copy_host_to_device(&copy));
  }
  if (error->empty() && copy.event == nullptr) *error = "a copy of a RawBuffer has no event";
  return error->empty() ? copy.event : nullptr;
}

}  // namespace tpu_sync_native::pjrt
