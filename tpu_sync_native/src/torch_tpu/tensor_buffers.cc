#include "torch_tpu/tensor_buffers.h"

#include <dlfcn.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "torch_tpu/careful_read.h"

namespace tpu_sync_native::torch_tpu {
namespace {

// absl::Status and absl::StatusOr<pointer> as the callee returns them: through memory, as neither is trivial.
// An error's text is an object of theirs that cannot be freed from here; it is left.
struct ReturnedStatus {
  uint64_t status = 0;
  ReturnedStatus() = default;
  ReturnedStatus(const ReturnedStatus&) = delete;
  ~ReturnedStatus() {}
  bool ok() const { return status == kOk; }
  static constexpr uint64_t kOk = 1;
};

struct ReturnedPointer : ReturnedStatus {
  void* value = nullptr;
  ~ReturnedPointer() {}
};

struct TensorHandle {
  void* impl;
};

void* LoadedLibrary(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) throw std::runtime_error(path + " is not loaded in this process");
  return handle;
}

template <typename Function>
Function* Find(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(std::string("torch_tpu has no ") + name);
  return reinterpret_cast<Function*>(symbol);
}

uint64_t At(const void* object, uint64_t offset) {
  uint64_t value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof(value));
  return value;
}

}  // namespace

struct TensorBuffers::Symbols {
  explicit Symbols(void* library)
      : base_buffer(Find<ReturnedPointer(void* const&)>(library,
                                                        "_ZN9torch_tpu19GetBaseTensorBufferERKN2at6TensorE")),
        materialize(
            Find<ReturnedStatus(TensorHandle*)>(library, "_ZN9torch_tpu18TensorBufferHandle11MaterializeEv")),
        await_buffer(Find<ReturnedPointer(TensorHandle*)>(
            library, "_ZN9torch_tpu18TensorBufferHandle11AwaitBufferEv")),
        destroy(Find<void(TensorHandle*)>(library, "_ZN9torch_tpu18TensorBufferHandleD1Ev")) {}

  ReturnedPointer (*base_buffer)(void* const& tensor);
  ReturnedStatus (*materialize)(TensorHandle*);
  ReturnedPointer (*await_buffer)(TensorHandle*);
  void (*destroy)(TensorHandle*);
};

TensorBuffers::TensorBuffers(std::unique_ptr<Symbols> symbols, const TensorLayout& layout)
    : symbols_(std::move(symbols)), layout_(layout) {}

TensorBuffers::~TensorBuffers() = default;

std::unique_ptr<TensorBuffers> TensorBuffers::Open(const std::string& library, const std::string& plugin,
                                                   const TensorLayout& layout, uint64_t probe) {
  const auto get_api = Find<const pjrt::Api*()>(LoadedLibrary(plugin), "GetPjrtApi");
  std::unique_ptr<TensorBuffers> opened(
      new TensorBuffers(std::make_unique<Symbols>(LoadedLibrary(library)), layout));
  const auto* const api = get_api();
  opened->library_ = pjrt::Library::Adopt(api);
  opened->api_ = reinterpret_cast<uint64_t>(api);

  std::string error;
  const char* const object = opened->Object(probe, &error);
  if (object == nullptr) throw std::runtime_error(error);
  uint64_t client = 0, client_api = 0, handle = 0;
  CarefulReader reader;
  if (!reader.Read(object + layout.buffer_client, &client) ||
      !reader.Read(reinterpret_cast<const char*>(client + layout.client_api), &client_api) ||
      !reader.Read(reinterpret_cast<const char*>(client + layout.client_handle), &opened->client_) ||
      !reader.Read(object + layout.buffer_handle, &handle) || client_api != opened->api_) {
    throw std::runtime_error(
        "torch_tpu's buffers are not laid out as they were in the release it says it is");
  }
  return opened;
}

const char* TensorBuffers::Object(uint64_t tensor, std::string* error) const {
  void* const impl = reinterpret_cast<void*>(tensor);
  const ReturnedPointer base = symbols_->base_buffer(impl);
  if (!base.ok()) {
    *error = "it has no buffer on a TPU";
    return nullptr;
  }
  TensorHandle handle{base.value};
  const char* object = nullptr;
  if (symbols_->materialize(&handle).ok()) {
    const ReturnedPointer buffer = symbols_->await_buffer(&handle);
    if (buffer.ok()) object = static_cast<const char*>(buffer.value);
  }
  symbols_->destroy(&handle);
  if (object == nullptr) *error = "what was to compute it has failed";
  return object;
}

bool TensorBuffers::Resolve(std::span<const uint64_t> tensors, std::span<uint64_t> buffers,
                            std::string* error) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const char* const object = Object(tensors[i], error);
    if (object == nullptr) {
      *error = "tensor " + std::to_string(i) + ": " + *error;
      return false;
    }
    buffers[i] = At(object, layout_.buffer_handle);
  }
  return true;
}

uint64_t TensorBuffers::DeviceBytes(uint64_t buffer) const {
  pjrt::BufferOnDeviceSize args;
  args.buffer = reinterpret_cast<pjrt::Buffer*>(buffer);
  const std::string error = library_->Try(&args);
  if (!error.empty()) throw std::runtime_error(error);
  return args.bytes;
}

DeviceLayout TensorBuffers::LayoutOf(uint64_t buffer) const {
  pjrt::BufferDimensions shape;
  pjrt::BufferGetMemoryLayout memory;
  shape.buffer = memory.buffer = reinterpret_cast<pjrt::Buffer*>(buffer);
  std::string error = library_->Try(&shape);
  if (error.empty()) error = library_->Try(&memory);
  if (error.empty() && memory.layout.type != pjrt::MemoryLayout::kTiled) error = "its layout has no tiles";
  if (!error.empty()) throw std::runtime_error(error);

  const pjrt::MemoryLayout::Tiled& tiled = memory.layout.tiled;
  DeviceLayout layout;
  layout.dimensions.assign(shape.dims, shape.dims + shape.num_dims);
  layout.minor_to_major.assign(tiled.minor_to_major, tiled.minor_to_major + tiled.minor_to_major_size);
  const int64_t* first = tiled.tile_dims;
  for (size_t i = 0; i < tiled.tiles; ++i) {
    layout.tiles.emplace_back(first, first + tiled.tile_dim_sizes[i]);
    first += tiled.tile_dim_sizes[i];
  }
  return layout;
}

}  // namespace tpu_sync_native::torch_tpu
