// Files: the storage tier's view of a medium, as it is, for tests and benchmarks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "fs/posix_file_system.h"
#include "gil.h"
#include "python_files.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

void Raise(const IoError& error, const std::string& path) {
  if (error.ok()) return;
  if (error.code == IoError::kShort) {
    PyErr_SetString(PyExc_EOFError, (path + ": " + error.text()).c_str());
  } else {
    errno = error.code;
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
  }
  throw py::error_already_set();
}

// Python buffers as parts; they stay exported while this lives, which begins and ends with the GIL.
class Parts {
 public:
  Parts(const py::sequence& buffers, bool writable) {
    for (const py::handle& buffer : buffers) {
      Py_buffer view;
      if (PyObject_GetBuffer(buffer.ptr(), &view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
        throw py::error_already_set();
      }
      views_.push_back(std::unique_ptr<Py_buffer, Release>(new Py_buffer(view)));
      parts_.push_back({view.buf, static_cast<uint64_t>(view.len)});
    }
  }
  const std::vector<IoVec>& get() const { return parts_; }

 private:
  struct Release {
    void operator()(Py_buffer* view) const {
      PyBuffer_Release(view);
      delete view;
    }
  };
  std::vector<std::unique_ptr<Py_buffer, Release>> views_;
  std::vector<IoVec> parts_;
};

class PyReader {
 public:
  PyReader(std::unique_ptr<ReadFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  ~PyReader() {
    const py::gil_scoped_release release;
    file_.reset();
  }
  void Read(uint64_t offset, const py::sequence& buffers) {
    const Parts parts(buffers, true);
    Raise(WithoutGil([&] { return file_->Read(offset, parts.get()); }), path_);
  }
  uint64_t Size() {
    uint64_t bytes = 0;
    Raise(WithoutGil([&] { return file_->Size(&bytes); }), path_);
    return bytes;
  }

 private:
  std::unique_ptr<ReadFile> file_;
  const std::string path_;
};

class PyAppender {
 public:
  PyAppender(std::unique_ptr<AppendFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  ~PyAppender() {
    const py::gil_scoped_release release;
    file_.reset();
  }
  void Append(const py::sequence& buffers) {
    const Parts parts(buffers, false);
    Raise(WithoutGil([&] { return file_->Append(parts.get()); }), path_);
  }
  void Sync() {
    Raise(WithoutGil([&] { return file_->Sync(); }), path_);
  }
  void Close() {
    Raise(WithoutGil([&] { return file_->Close(); }), path_);
  }

 private:
  std::unique_ptr<AppendFile> file_;
  const std::string path_;
};

class PyFiles {
 public:
  PyFiles(const py::object& where, bool direct, bool ring_reads, bool ring_writes) {
    if (!py::isinstance<py::str>(where)) {
      files_ = MakePythonFiles(where);
      return;
    }
    PosixOptions options;
    options.direct = direct;
    options.ring_reads = ring_reads;
    options.ring_writes = ring_writes;
    files_ = MakePosixFileSystem(where.cast<std::string>(), options);
  }
  ~PyFiles() {
    const py::gil_scoped_release release;
    files_.reset();
  }

  std::string Name() const { return files_->traits().name; }
  bool AppendsReadable() const { return files_->traits().appends_readable; }
  bool Renames() const { return files_->traits().renames; }

  void CheckRoot() {
    std::string why;
    const IoError error = WithoutGil([&] { return files_->CheckRoot(&why); });
    if (error.ok()) return;
    PyErr_SetObject(PyExc_OSError, py::make_tuple(error.code, why).ptr());
    throw py::error_already_set();
  }
  std::unique_ptr<PyReader> OpenRead(const std::string& path) {
    std::unique_ptr<ReadFile> file;
    Raise(WithoutGil([&] { return files_->OpenRead(path, &file); }), path);
    return std::make_unique<PyReader>(std::move(file), path);
  }
  std::unique_ptr<PyAppender> OpenAppend(const std::string& path, uint64_t bytes_expected) {
    std::unique_ptr<AppendFile> file;
    Raise(WithoutGil([&] { return files_->OpenAppend(path, bytes_expected, &file); }), path);
    return std::make_unique<PyAppender>(std::move(file), path);
  }
  py::bytes ReadAll(const std::string& path, uint64_t bytes_max) {
    std::string data;
    Raise(WithoutGil([&] { return files_->ReadAll(path, bytes_max, &data); }), path);
    return data;
  }
  void Publish(const std::string& path, const py::bytes& data, bool exclusive) {
    const std::string copy = data;
    Raise(WithoutGil([&] { return files_->Publish(path, copy, exclusive); }), path);
  }
  void MakeDirectory(const std::string& path, bool exclusive) {
    Raise(WithoutGil([&] { return files_->MakeDirectory(path, exclusive); }), path);
  }
  std::vector<std::pair<std::string, bool>> List(const std::string& path) {
    std::vector<DirEntry> entries;
    Raise(WithoutGil([&] { return files_->List(path, &entries); }), path);
    std::vector<std::pair<std::string, bool>> rows;
    for (DirEntry& entry : entries) rows.emplace_back(std::move(entry.name), entry.directory);
    return rows;
  }
  void Rename(const std::string& from, const std::string& to) {
    Raise(WithoutGil([&] { return files_->Rename(from, to); }), from);
  }
  void Remove(const std::string& path) {
    Raise(WithoutGil([&] { return files_->Remove(path); }), path);
  }
  std::pair<uint64_t, uint64_t> Space() {
    SpaceInfo space;
    Raise(WithoutGil([&] { return files_->Space(&space); }), "");
    return {space.total_bytes, space.free_bytes};
  }

 private:
  std::shared_ptr<FileSystem> files_;
};

}  // namespace

void BindFiles(py::module_& module) {
  py::class_<PyReader>(module, "FileReader")
      .def("read", &PyReader::Read, py::arg("offset"), py::arg("buffers"))
      .def("size", &PyReader::Size);
  py::class_<PyAppender>(module, "FileAppender")
      .def("append", &PyAppender::Append, py::arg("buffers"))
      .def("sync", &PyAppender::Sync)
      .def("close", &PyAppender::Close);
  py::class_<PyFiles>(module, "Files")
      .def(py::init<const py::object&, bool, bool, bool>(), py::arg("where"), py::kw_only(),
           py::arg("direct") = true, py::arg("ring_reads") = PosixOptions{}.ring_reads,
           py::arg("ring_writes") = PosixOptions{}.ring_writes)
      .def_property_readonly("name", &PyFiles::Name)
      .def_property_readonly("appends_readable", &PyFiles::AppendsReadable)
      .def_property_readonly("renames", &PyFiles::Renames)
      .def("check_root", &PyFiles::CheckRoot)
      .def("open_read", &PyFiles::OpenRead, py::arg("path"))
      .def("open_append", &PyFiles::OpenAppend, py::arg("path"), py::arg("bytes_expected") = 0)
      .def("read_all", &PyFiles::ReadAll, py::arg("path"), py::arg("bytes_max"))
      .def("publish", &PyFiles::Publish, py::arg("path"), py::arg("data"), py::arg("exclusive") = false)
      .def("make_directory", &PyFiles::MakeDirectory, py::arg("path"), py::arg("exclusive") = false)
      .def("list", &PyFiles::List, py::arg("path"))
      .def("rename", &PyFiles::Rename, py::arg("source"), py::arg("target"))
      .def("remove", &PyFiles::Remove, py::arg("path"))
      .def("space", &PyFiles::Space);
}

}  // namespace tpu_sync_native
