// The names of a file system in memory.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace tpu_sync_native::testing {

inline std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}
inline std::string NameOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

struct MemoryNode {
  std::string data;
  size_t synced = 0;  // of data, from the front
};

struct MemoryTree {
  std::map<std::string, std::shared_ptr<MemoryNode>> files;
  std::set<std::string> directories{""};

  // A file, or a directory with all below it.
  void Move(const std::string& from, const std::string& to) {
    const auto moved = [&](const std::string& path) {
      return path == from || path.starts_with(from + "/") ? to + path.substr(from.size()) : path;
    };
    std::map<std::string, std::shared_ptr<MemoryNode>> new_files;
    for (const auto& [path, node] : files) new_files[moved(path)] = node;
    std::set<std::string> new_directories;
    for (const std::string& path : directories) new_directories.insert(moved(path));
    files = std::move(new_files);
    directories = std::move(new_directories);
  }
};

}  // namespace tpu_sync_native::testing
