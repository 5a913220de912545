// What changes names below a POSIX root: publish, directories, renames, removal. Each is atomic for other
// hosts, and durable before it returns (Remove apart).
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "fs/posix_root.h"

namespace tpu_sync_native {

// A new file for reading and writing; EEXIST when the name is taken.
IoError CreateNew(int directory, const std::string& name, mode_t mode, bool direct, UniqueFd* fd);

IoError PublishBelow(const PosixRoot& root, const std::string& path, std::string_view data, bool exclusive);
IoError MakeDirectoryBelow(const PosixRoot& root, const std::string& path, bool exclusive);
IoError ListBelow(const PosixRoot& root, const std::string& path, std::vector<DirEntry>* entries);
IoError RenameBelow(const PosixRoot& root, const std::string& from, const std::string& to);
IoError RemoveBelow(const PosixRoot& root, const std::string& path);
IoError RemoveTemporariesBelow(const PosixRoot& root, const std::string& path, uint64_t* removed);

}  // namespace tpu_sync_native
