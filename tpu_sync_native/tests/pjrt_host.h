// The test plugin as a process has it: loaded, a client, buffers made and replaced by hand. No Python, no
// compiler.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "pjrt/library.h"
#include "pjrt_plugin/plugin_abi.h"

namespace tpu_sync_native::testing {

class PjrtHost {
 public:
  // One a process: plugins never go.
  static PjrtHost& Get() {
    static auto* const host = new PjrtHost;
    return *host;
  }

  static const char* path() { return KVTIER_TEST_PJRT_PLUGIN; }
  const pjrt::Api* api() const { return api_; }
  pjrt::Client* client() const { return client_; }

  void Set(const char* name, int64_t value) { set_(name, value); }
  int64_t Ask(const char* name) { return get_(name); }

  uint64_t MakeBuffer(std::span<const uint8_t> bytes) {
    const int64_t dims[] = {static_cast<int64_t>(bytes.size())};
    pjrt::BufferFromHostBuffer make;
    make.client = client_;
    make.data = bytes.data();
    make.dims = dims;
    make.dim_count = 1;
    make.device = device_;
    Call(&make);
    pjrt::EventAwait await;
    await.event = make.done_with_data;
    Call(&await);
    pjrt::EventDestroy destroy;
    destroy.event = make.done_with_data;
    Call(&destroy);
    return reinterpret_cast<uint64_t>(make.buffer);
  }

  // The buffer's memory, past the runtime.
  std::span<uint8_t> MemoryOf(uint64_t buffer) {
    pjrt::BufferUnsafePointer pointer;
    pointer.buffer = reinterpret_cast<pjrt::Buffer*>(buffer);
    Call(&pointer);
    pjrt::BufferOnDeviceSize size;
    size.buffer = pointer.buffer;
    Call(&size);
    return {reinterpret_cast<uint8_t*>(pointer.pointer), size.bytes};
  }

  void Destroy(uint64_t buffer) {
    pjrt::BufferDestroy destroy;
    destroy.buffer = reinterpret_cast<pjrt::Buffer*>(buffer);
    Call(&destroy);
  }

  // Frees the memory, as donating does; the object stays.
  void Delete(uint64_t buffer) {
    pjrt::BufferDelete gone;
    gone.buffer = reinterpret_cast<pjrt::Buffer*>(buffer);
    Call(&gone);
  }

  // What a step does that writes in place: another buffer with these bytes, the old one destroyed.
  uint64_t Replace(uint64_t buffer) {
    const std::span<uint8_t> memory = MemoryOf(buffer);
    const uint64_t next = MakeBuffer(memory);
    Destroy(buffer);
    return next;
  }

 private:
  PjrtHost() {
    if (std::getenv("KVTIER_PJRT_CPU_PLUGIN") == nullptr) {
      Fail(__FILE__, __LINE__, "KVTIER_PJRT_CPU_PLUGIN is not set:",
           "it names pjrt_c_api_cpu_plugin.so of the package lammps-jax-pjrt-cpu (make setup installs it)");
    }
    void* const handle = dlopen(path(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) Fail(__FILE__, __LINE__, "dlopen", dlerror());
    api_ = reinterpret_cast<const pjrt::Api* (*)()>(dlsym(handle, "GetPjrtApi"))();
    CHECK(api_ != nullptr);
    set_ = reinterpret_cast<void (*)(const char*, int64_t)>(dlsym(handle, "kvtier_pjrt_set"));
    get_ = reinterpret_cast<int64_t (*)(const char*)>(dlsym(handle, "kvtier_pjrt_get"));
    library_ = pjrt::Library::Adopt(api_);
    pjrt::PluginInitialize initialize;
    Call(&initialize);
    pjrt::ClientCreate create;
    Call(&create);
    client_ = create.client;
    pjrt::ClientAddressableDevices devices;
    devices.client = client_;
    Call(&devices);
    device_ = devices.devices[0];
  }

  template <typename Args>
  void Call(Args* args) {
    const std::string error = library_->Try(args);
    if (!error.empty()) Fail(__FILE__, __LINE__, "PJRT", error);
  }

  const pjrt::Api* api_;
  void (*set_)(const char*, int64_t);
  int64_t (*get_)(const char*);
  std::shared_ptr<const pjrt::Library> library_;
  pjrt::Client* client_;
  pjrt::Device* device_;
};

}  // namespace tpu_sync_native::testing
