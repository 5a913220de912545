// From a torch tensor on device "tpu" to the PJRT_Buffer* behind it, without headers of torch, torch_tpu or
// XLA.
//
// torch_tpu exports the functions that lead from a tensor to xla::PjRtBuffer; the C API's buffer lies at a
// fixed place in that object, per release of torch_tpu. So a TensorLayout counts for the release it was found
// in, and Open compares what it leads to with what the plugin itself says, by reads that cannot fault.
//
// A tensor is named by its at::TensorImpl* (`_cdata` in Python); at::Tensor is one such pointer. The caller
// keeps the tensor alive, and whatever he reads here holds until the tensor is next written to.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pjrt/library.h"

namespace tpu_sync_native::torch_tpu {

// Bytes into the objects of xla's C++ client.
struct TensorLayout {
  uint64_t buffer_client = 0;  // PjRtCApiBuffer: its PjRtCApiClient*
  uint64_t buffer_handle = 0;  // PjRtCApiBuffer: PJRT_Buffer*
  uint64_t client_api = 0;     // PjRtCApiClient: const PJRT_Api*
  uint64_t client_handle = 0;  // PjRtCApiClient: PJRT_Client*
};

// How a buffer's bytes lie in device memory. Several tiles nest: each next one cuts the one before.
struct DeviceLayout {
  std::vector<int64_t> dimensions;
  std::vector<int64_t> minor_to_major;
  std::vector<std::vector<int64_t>> tiles;
};

class TensorBuffers {
 public:
  // library: torch_tpu's library with these functions; plugin: the PJRT plugin that it uses. Both are loaded
  // in this process. probe: any of its tensors. Throws std::runtime_error: something is absent or not as
  // expected.
  static std::unique_ptr<TensorBuffers> Open(const std::string& library, const std::string& plugin,
                                             const TensorLayout& layout, uint64_t probe);

  // PJRT_Buffer* of each tensor's base buffer. Waits until what was to make it has been launched, not until
  // it is done: that is for the buffer's own event. False and a text when a tensor has none.
  bool Resolve(std::span<const uint64_t> tensors, std::span<uint64_t> buffers, std::string* error) const;

  // Bytes the device keeps for a buffer; what pads its tiles counts. Throws std::runtime_error.
  uint64_t DeviceBytes(uint64_t buffer) const;
  // Throws std::runtime_error, also where the runtime describes the memory in another way.
  DeviceLayout LayoutOf(uint64_t buffer) const;

  uint64_t api() const { return api_; }        // PJRT_Api*
  uint64_t client() const { return client_; }  // PJRT_Client*

 private:
  struct Symbols;

  TensorBuffers(std::unique_ptr<Symbols> symbols, const TensorLayout& layout);
  // xla::PjRtBuffer*, or null and a text.
  const char* Object(uint64_t tensor, std::string* error) const;

  const std::unique_ptr<Symbols> symbols_;
  const TensorLayout layout_;
  std::shared_ptr<const pjrt::Library> library_;
  uint64_t api_ = 0;
  uint64_t client_ = 0;

 public:
  ~TensorBuffers();
};

}  // namespace tpu_sync_native::torch_tpu
