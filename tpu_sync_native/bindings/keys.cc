#include "keys.h"

#include <cstring>
#include <string>

#include "tpu_sync_native/ring_layout.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

// Kept between calls, so that a call on the hot path allocates nothing.
thread_local std::vector<uint32_t> offsets_of_thread;
thread_local std::vector<uint8_t> bytes_of_thread;

const std::string& Allowed() {
  static const std::string text =
      "allowed are " + std::to_string(kKeyBytesMin) + " to " + std::to_string(kKeyBytesMax) + " bytes";
  return text;
}

void CheckCount(size_t count) {
  if (count > kRingKeysMax) {
    throw py::value_error("keys: " + std::to_string(count) + " keys in one call, allowed are " +
                          std::to_string(kRingKeysMax));
  }
}

}  // namespace

PackedKeys::PackedKeys(py::handle keys) {
  if (py::isinstance<py::array>(keys)) {
    PackArray(py::reinterpret_borrow<py::array>(keys));
  } else {
    PackSequence(keys);
  }
}

void PackedKeys::PackArray(const py::array& array) {
  if (!py::isinstance<py::array_t<uint8_t>>(array) || array.ndim() != 2 ||
      (array.flags() & py::array::c_style) == 0) {
    throw py::value_error("keys: an array of keys must be C-contiguous uint8 of shape (count, key_bytes)");
  }
  const auto count = static_cast<size_t>(array.shape(0));
  const auto length = static_cast<size_t>(array.shape(1));
  CheckCount(count);
  if (length < kKeyBytesMin || length > kKeyBytesMax) {
    throw py::value_error("keys: keys of " + std::to_string(length) + " bytes, " + Allowed());
  }
  std::vector<uint32_t>& offsets = offsets_of_thread;
  offsets.resize(count + 1);
  for (size_t i = 0; i <= count; ++i) offsets[i] = static_cast<uint32_t>(i * length);
  batch_ = {static_cast<const uint8_t*>(array.data()), offsets.data(), static_cast<uint32_t>(count)};
}

void PackedKeys::PackSequence(py::handle keys) {
  const auto fast =
      py::reinterpret_steal<py::object>(PySequence_Fast(keys.ptr(), "keys: a list of bytes is needed"));
  if (!fast) {
    PyErr_Clear();
    throw py::value_error("keys: a list of bytes or a (count, key_bytes) uint8 array is needed, not " +
                          std::string(Py_TYPE(keys.ptr())->tp_name));
  }
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  CheckCount(count);
  PyObject** const items = PySequence_Fast_ITEMS(fast.ptr());
  std::vector<uint32_t>& offsets = offsets_of_thread;
  std::vector<uint8_t>& bytes = bytes_of_thread;
  offsets.resize(count + 1);
  bytes.resize(count * kKeyBytesMax);
  uint32_t end = 0;
  offsets[0] = 0;
  for (size_t i = 0; i < count; ++i) {
    PyObject* const key = items[i];
    if (!PyBytes_Check(key)) {
      throw py::value_error("keys[" + std::to_string(i) + "] is " + Py_TYPE(key)->tp_name +
                            ", bytes are needed");
    }
    const auto length = static_cast<size_t>(PyBytes_GET_SIZE(key));
    if (length < kKeyBytesMin || length > kKeyBytesMax) {
      throw py::value_error("keys[" + std::to_string(i) + "] has " + std::to_string(length) + " bytes, " +
                            Allowed());
    }
    std::memcpy(bytes.data() + end, PyBytes_AS_STRING(key), length);
    end += static_cast<uint32_t>(length);
    offsets[i + 1] = end;
  }
  batch_ = {bytes.data(), offsets.data(), static_cast<uint32_t>(count)};
}

std::vector<uint8_t> PackKeep(const py::object& keep) {
  if (keep.is_none()) return {};
  const auto mask = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>::ensure(keep);
  if (!mask || mask.ndim() != 1) {
    PyErr_Clear();
    throw py::value_error("keep: an array of one byte per slot is needed");
  }
  if (mask.size() == 0) throw py::value_error("keep: empty; None keeps all slots");
  CheckCount(static_cast<size_t>(mask.size()));
  std::vector<uint8_t> bits((static_cast<size_t>(mask.size()) + 7) / 8);
  const uint8_t* const data = mask.data();
  for (py::ssize_t i = 0; i < mask.size(); ++i) {
    if (data[i] != 0) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | (1u << (i % 8)));
  }
  return bits;
}

}  // namespace tpu_sync_native
