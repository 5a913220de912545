// Keys as Python gives them, as the KeyBatch that native code takes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "base/keys.h"

namespace tpu_sync_native {

// Made with the GIL held; the batch may then be used without it, by this thread, as long as this object
// lives. At most one lives per thread (the memory is the thread's own and is used again). A (count,
// key_bytes) uint8 array is read in place: the caller must not change it during the call.
class PackedKeys {
 public:
  // Throws py::value_error naming the key's index, its length and what is allowed.
  explicit PackedKeys(pybind11::handle keys);
  PackedKeys(const PackedKeys&) = delete;
  PackedKeys& operator=(const PackedKeys&) = delete;

  const KeyBatch& batch() const { return batch_; }

 private:
  void PackArray(const pybind11::array& array);
  void PackSequence(pybind11::handle keys);

  KeyBatch batch_;
};

// A mask of one byte per slot (0: not kept) as the bitmap that Commit takes; empty for None.
std::vector<uint8_t> PackKeep(const pybind11::object& keep);

}  // namespace tpu_sync_native
