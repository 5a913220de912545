// A FileSystem over a Python object, for object stores: Python has their clients, native code has the
// threads.
//
// The GIL is held around the object's calls alone, one call per I/O, never per chunk: bytes are gathered and
// scattered without it. An OSError becomes its errno, whatever else is raised becomes EIO; nothing escapes.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "fs/file_system.h"

namespace tpu_sync_native {

// `files` is a PythonFiles of kvtier/io/objects.py. Its segments are objects: they are readable once closed,
// nothing is renamed. Called with the GIL; what is returned may be used and destroyed by any thread, with or
// without it.
std::shared_ptr<FileSystem> MakePythonFiles(const pybind11::object& files);

}  // namespace tpu_sync_native
