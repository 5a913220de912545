#include "python_files.h"

#include <cxxabi.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

// Whether the interpreter still gives its lock to threads like ours; taking it later never returns.
bool InterpreterLives() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

// Runs `call`, which is C all the way down: whatever waits for the interpreter's lock. When the interpreter
// ends meanwhile, it takes such a thread away by unwinding it, and on the way destructors would touch Python
// without its lock, and handlers for anything would stop what must not be stopped: either ends the process
// with a signal. So the thread stays here, for as long as the process still lives.
template <typename Call>
auto Staying(const Call& call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

class Gil {
 public:
  Gil() : state_(Staying([] { return PyGILState_Ensure(); })) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  const PyGILState_STATE state_;
};

class NoGil {
 public:
  NoGil() : thread_(PyEval_SaveThread()) {}
  ~NoGil() {
    Staying([this] { PyEval_RestoreThread(thread_); });
  }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  PyThreadState* const thread_;
};

// object.name(arguments...); throws what it raised.
template <typename... Arguments>
py::object CallMethod(const py::handle& object, const char* name, Arguments&&... arguments) {
  const py::tuple packed = py::make_tuple(std::forward<Arguments>(arguments)...);
  PyObject* const answer = Staying([&]() -> PyObject* {
    PyObject* const method = PyObject_GetAttrString(object.ptr(), name);
    if (method == nullptr) return nullptr;
    PyObject* const returned = PyObject_Call(method, packed.ptr(), nullptr);
    Py_DECREF(method);
    return returned;
  });
  if (answer == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(answer);
}

// A reference that any thread may drop.
class Held {
 public:
  explicit Held(py::object object) : object_(object.release().ptr()) {}
  ~Held() {
    if (!InterpreterLives()) return;  // its memory goes with the process
    const Gil gil;
    Staying([this] { Py_XDECREF(object_); });  // may run its finalizer
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  py::handle get() const { return object_; }

 private:
  PyObject* const object_;
};

IoError ErrorOf(const py::error_already_set& raised) {
  if (raised.matches(PyExc_MemoryError)) return {ENOMEM};
  if (!raised.matches(PyExc_OSError)) return {EIO};
  const py::object code = py::getattr(raised.value(), "errno", py::none());
  if (!py::isinstance<py::int_>(code)) return {EIO};
  const int value = code.cast<int>();
  return {value > 0 ? value : EIO};
}

// Makes calls into Python; `call` runs with the GIL.
template <typename Call>
IoError WithPython(const Call& call) {
  if (!InterpreterLives()) return {ECANCELED};
  const Gil gil;
  try {
    return call();
  } catch (const py::error_already_set& raised) {
    try {
      return ErrorOf(raised);
    } catch (const std::exception&) {  // an exception whose errno cannot be read
      return {EIO};
    }
  } catch (const std::exception&) {  // an answer of another type than was promised, no memory
    return {EIO};
  }
}

// Copies a Python buffer into `parts` without the GIL. kShort: it was smaller. EIO: it was larger, so it is
// not what was asked for (a store that knows no ranges sends the object from its beginning).
IoError Scatter(const py::object& data, std::span<const IoVec> parts, uint64_t bytes) {
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  const auto size = static_cast<uint64_t>(view.len);
  if (size == bytes) {
    const NoGil without;
    const auto* from = static_cast<const uint8_t*>(view.buf);
    for (const IoVec& part : parts) {
      if (part.bytes != 0) std::memcpy(part.data, from, part.bytes);
      from += part.bytes;
    }
  }
  PyBuffer_Release(&view);
  return {size == bytes ? 0 : size < bytes ? IoError::kShort : EIO};
}

// False: more than any object can have.
bool Sum(std::span<const IoVec> parts, uint64_t* bytes) {
  *bytes = 0;
  for (const IoVec& part : parts) {
    if (part.bytes > static_cast<uint64_t>(PY_SSIZE_T_MAX) - *bytes) return false;
    *bytes += part.bytes;
  }
  return true;
}

class PythonReader final : public ReadFile {
 public:
  PythonReader(std::shared_ptr<Held> files, std::string path, uint64_t size)
      : files_(std::move(files)), path_(std::move(path)), size_(size) {}

  IoError Read(uint64_t offset, std::span<const IoVec> parts) override {
    uint64_t bytes = 0;
    if (!Sum(parts, &bytes)) return {EINVAL};
    if (offset > size_ || bytes > size_ - offset) return {IoError::kShort};
    if (bytes == 0) return {};
    return WithPython(
        [&] { return Scatter(CallMethod(files_->get(), "read", path_, offset, bytes), parts, bytes); });
  }

  // As it was when it was opened: objects do not grow.
  IoError Size(uint64_t* bytes) override {
    *bytes = size_;
    return {};
  }

 private:
  const std::shared_ptr<Held> files_;
  const std::string path_;
  const uint64_t size_;
};

class PythonAppender final : public AppendFile {
 public:
  explicit PythonAppender(py::object writer) : writer_(std::make_unique<Held>(std::move(writer))) {}

  ~PythonAppender() override {
    if (writer_ == nullptr) return;
    WithPython([&]() -> IoError {
      CallMethod(writer_->get(), "abort");
      return {};
    });
  }

  IoError Append(std::span<const IoVec> parts) override {
    uint64_t bytes = 0;
    if (writer_ == nullptr) return {EBADF};
    if (!Sum(parts, &bytes)) return {EINVAL};
    if (bytes == 0) return {};
    return WithPython([&]() -> IoError {
      PyObject* const raw = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes));
      if (raw == nullptr) throw py::error_already_set();
      const auto data = py::reinterpret_steal<py::object>(raw);
      {
        char* to = PyBytes_AS_STRING(raw);  // nobody else has it yet
        const NoGil without;
        for (const IoVec& part : parts) {
          if (part.bytes != 0) std::memcpy(to, part.data, part.bytes);
          to += part.bytes;
        }
      }
      CallMethod(writer_->get(), "write", data);
      return {};
    });
  }

  // Nothing of an object is durable before it is closed.
  IoError Sync() override { return {writer_ == nullptr ? EBADF : 0}; }

  IoError Close() override {
    if (writer_ == nullptr) return {EBADF};
    const IoError error = WithPython([&]() -> IoError {
      CallMethod(writer_->get(), "close");
      return {};
    });
    if (error.ok()) writer_.reset();  // else the destructor aborts it
    return error;
  }

 private:
  std::unique_ptr<Held> writer_;  // null once closed
};

class PythonFiles final : public FileSystem {
 public:
  explicit PythonFiles(const py::object& files) : files_(std::make_shared<Held>(files)) {
    traits_.name = files.attr("name").cast<std::string>();
    traits_.io_bytes_best = files.attr("io_bytes_best").cast<uint64_t>();
    traits_.appends_readable = false;
    traits_.renames = false;
  }

  const FileSystemTraits& traits() const override { return traits_; }

  IoError CheckRoot(std::string* why) override {
    why->clear();
    const IoError error = WithPython([&]() -> IoError {
      try {
        Call("check_root");
        return {};
      } catch (const py::error_already_set& raised) {
        *why = py::str(raised.value()).cast<std::string>();
        throw;
      }
    });
    if (!error.ok() && why->empty()) *why = error.text();
    return error;
  }

  IoError OpenRead(const std::string& path, std::unique_ptr<ReadFile>* file) override {
    if (!PathIsSafe(path)) return {EINVAL};
    return WithPython([&]() -> IoError {
      const auto size = Call("size", path).cast<uint64_t>();
      *file = std::make_unique<PythonReader>(files_, path, size);
      return {};
    });
  }

  IoError OpenAppend(const std::string& path, uint64_t, std::unique_ptr<AppendFile>* file) override {
    if (!PathIsSafe(path)) return {EINVAL};
    return WithPython([&]() -> IoError {
      *file = std::make_unique<PythonAppender>(Call("create", path));
      return {};
    });
  }

  IoError ReadAll(const std::string& path, uint64_t bytes_max, std::string* data) override {
    if (!PathIsSafe(path)) return {EINVAL};
    return WithPython([&]() -> IoError {
      const py::bytes bytes = Call("read_all", path, bytes_max);
      std::string read = bytes;
      if (read.size() > bytes_max) return {EFBIG};
      *data = std::move(read);
      return {};
    });
  }

  IoError Publish(const std::string& path, std::string_view data, bool exclusive) override {
    if (!PathIsSafe(path)) return {EINVAL};
    return WithPython([&]() -> IoError {
      Call("publish", path, py::bytes(data.data(), data.size()), exclusive);
      return {};
    });
  }

  // An object store has none: they are where something lies below them.
  IoError MakeDirectory(const std::string& path, bool) override { return {PathIsSafe(path) ? 0 : EINVAL}; }

  IoError List(const std::string& path, std::vector<DirEntry>* entries) override {
    if (!path.empty() && !PathIsSafe(path)) return {EINVAL};
    return WithPython([&]() -> IoError {
      std::vector<DirEntry> listed;
      const py::object answer = Call("list", path);
      PyObject* const rows = Staying([&] { return PySequence_List(answer.ptr()); });  // may be a generator
      if (rows == nullptr) throw py::error_already_set();
      for (const py::handle& row : py::reinterpret_steal<py::list>(rows)) {
        if (listed.size() == kListMax) return {EFBIG};
        auto [name, directory] = row.cast<std::pair<std::string, bool>>();
        listed.push_back({std::move(name), directory});
      }
      *entries = std::move(listed);
      return {};
    });
  }

  IoError Rename(const std::string& from, const std::string& to) override {
    return {PathIsSafe(from) && PathIsSafe(to) ? EOPNOTSUPP : EINVAL};
  }

  IoError Remove(const std::string& path) override {
    if (!PathIsSafe(path)) return {EINVAL};
    return WithPython([&]() -> IoError {
      Call("remove", path);
      return {};
    });
  }

  IoError Space(SpaceInfo* space) override {
    *space = {};  // unknown
    return {};
  }

 private:
  template <typename... Arguments>
  py::object Call(const char* name, Arguments&&... arguments) const {
    return CallMethod(files_->get(), name, std::forward<Arguments>(arguments)...);
  }

  const std::shared_ptr<Held> files_;
  FileSystemTraits traits_;
};

}  // namespace

std::shared_ptr<FileSystem> MakePythonFiles(const py::object& files) {
  return std::make_shared<PythonFiles>(files);
}

}  // namespace tpu_sync_native
