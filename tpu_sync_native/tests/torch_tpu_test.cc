// What leads from a tensor to its buffer, as far as it goes without torch_tpu; tests/device has the rest.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "check.h"
#include "torch_tpu/careful_read.h"
#include "torch_tpu/tensor_buffers.h"

namespace tpu_sync_native::testing {
namespace {

using torch_tpu::CarefulReader;
using torch_tpu::TensorBuffers;

std::string Refusal(const std::string& library, const std::string& plugin) {
  try {
    TensorBuffers::Open(library, plugin, {}, 0);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(a_careful_read_sees_what_is_mapped_and_only_that) {
  CarefulReader reader;
  const uint64_t there = 0x0123456789abcdef;
  uint64_t value = 0;
  CHECK(reader.Read(reinterpret_cast<const char*>(&there), &value));
  CHECK(value == there);
  CHECK(!reader.Read(nullptr, &value));

  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const mapped = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED);
  CHECK(!reader.Read(static_cast<const char*>(mapped), &value));
  munmap(mapped, page);
  // Nothing of the refused reads is left in between.
  CHECK(reader.Read(reinterpret_cast<const char*>(&there), &value));
  CHECK(value == there);
}

TEST(libraries_that_are_not_loaded_or_are_others_are_refused) {
  CHECK(Refusal("libm.so.6", "/nowhere/libtpu.so").find("/nowhere/libtpu.so is not loaded") == 0);
  CHECK(Refusal("libm.so.6", "libc.so.6").find("has no GetPjrtApi") != std::string::npos);
}

}  // namespace
}  // namespace tpu_sync_native::testing
