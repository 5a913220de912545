#include "fs/posix_names.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "fs/posix_file.h"

namespace tpu_sync_native {
namespace {

// 0 or an errno, tried again after a signal.
template <typename Call>
int Try(const Call& call) {
  for (;;) {
    if (call() == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

bool IsDirectory(int directory, const std::string& name) {
  struct stat about {};
  return fstatat(directory, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(about.st_mode);
}

// rename(2) that replaces nothing. Where the file system has no such rename (NFS, old kernels): a file by a
// second link, which is exclusive; a directory onto an empty one that was made exclusively.
int RenameExclusive(int from_directory, const std::string& from, int to_directory, const std::string& to) {
  const int code = Try([&] {
    return syscall(SYS_renameat2, from_directory, from.c_str(), to_directory, to.c_str(), RENAME_NOREPLACE);
  });
  if (code != EINVAL && code != ENOSYS && code != EOPNOTSUPP && code != EPERM) return code;
  if (!IsDirectory(from_directory, from)) {
    const int linked = Try([&] { return linkat(from_directory, from.c_str(), to_directory, to.c_str(), 0); });
    return linked != 0 ? linked : Try([&] { return unlinkat(from_directory, from.c_str(), 0); });
  }
  const int made = Try([&] { return mkdirat(to_directory, to.c_str(), 0700); });
  if (made != 0) return made;
  const int renamed = Try([&] { return renameat(from_directory, from.c_str(), to_directory, to.c_str()); });
  if (renamed != 0) unlinkat(to_directory, to.c_str(), AT_REMOVEDIR);
  return renamed;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};
using Listing = std::unique_ptr<DIR, CloseDirectory>;

IoError OpenListing(const PosixRoot& root, const std::string& path, Listing* listing) {
  UniqueFd fd;
  if (const IoError error = OpenBelow(root, path, O_RDONLY | O_DIRECTORY, 0, &fd); !error.ok()) return error;
  listing->reset(fdopendir(fd.get()));
  if (*listing == nullptr) return {errno};
  fd.Release();
  return {};
}

// Calls each(entry) for every entry; EFBIG beyond kListMax.
template <typename Each>
IoError ForEach(DIR* directory, const Each& each) {
  for (size_t count = 0;;) {
    errno = 0;
    const dirent* entry = readdir(directory);
    if (entry == nullptr) return {errno};
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    if (++count > kListMax) return {EFBIG};
    each(*entry);
  }
}

}  // namespace

IoError CreateNew(int directory, const std::string& name, mode_t mode, bool direct, UniqueFd* fd) {
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | (direct ? O_DIRECT : 0);
  for (;;) {
    const int opened = openat(directory, name.c_str(), flags, mode);
    if (opened >= 0) {
      *fd = UniqueFd(opened);
      return {};
    }
    if (errno != EINTR) return {errno};
  }
}

IoError PublishBelow(const PosixRoot& root, const std::string& path, std::string_view data, bool exclusive) {
  if (!PathIsSafe(path)) return {EINVAL};
  UniqueFd directory;
  std::string name;
  if (const IoError error = OpenParent(root, path, &directory, &name); !error.ok()) return error;
  const std::string temporary = NewTemporaryName();
  UniqueFd fd;
  if (const IoError error = CreateNew(directory.get(), temporary, root.file_mode, false, &fd); !error.ok()) {
    return error;
  }
  ShareWithGroup(root, fd.get(), root.file_mode);
  IoError error = WriteWhole(fd.get(), data);
  if (error.ok()) error = {Try([&] { return fsync(fd.get()); })};
  // A network file system may say only now that it could not write.
  if (const int raw = fd.Release(); close(raw) != 0 && errno != EINTR && error.ok()) error = {errno};
  if (error.ok()) {
    error = {exclusive ? RenameExclusive(directory.get(), temporary, directory.get(), name) : Try([&] {
      return renameat(directory.get(), temporary.c_str(), directory.get(), name.c_str());
    })};
  }
  if (error.ok()) return SyncDirectory(directory.get());
  unlinkat(directory.get(), temporary.c_str(), 0);
  return error;
}

IoError MakeDirectoryBelow(const PosixRoot& root, const std::string& path, bool exclusive) {
  if (!PathIsSafe(path)) return {EINVAL};
  UniqueFd there;
  if (!exclusive) {
    const IoError error = OpenBelow(root, path, O_PATH | O_DIRECTORY, 0, &there);
    if (error.code != ENOENT && error.code != ENOTDIR && error.code != ELOOP) return error;
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos) {
      const IoError above = MakeDirectoryBelow(root, path.substr(0, slash), false);
      if (!above.ok()) return above.code == EEXIST ? IoError{ENOTDIR} : above;
    }
  }
  UniqueFd directory;
  std::string name;
  if (const IoError error = OpenParent(root, path, &directory, &name); !error.ok()) return error;
  const int made = Try([&] { return mkdirat(directory.get(), name.c_str(), root.directory_mode & 0777); });
  if (made == EEXIST && !exclusive && IsDirectory(directory.get(), name))
    return {};  // somebody else, just now
  if (made != 0) return {made};
  if (root.group) {
    UniqueFd fd;
    const IoError error = OpenBelow(root, path, O_RDONLY | O_DIRECTORY, 0, &fd);
    if (error.ok()) ShareWithGroup(root, fd.get(), root.directory_mode);
  }
  return SyncDirectory(directory.get());
}

IoError ListBelow(const PosixRoot& root, const std::string& path, std::vector<DirEntry>* entries) {
  Listing listing;
  if (const IoError error = OpenListing(root, path, &listing); !error.ok()) return error;
  entries->clear();
  return ForEach(listing.get(), [&](const dirent& entry) {
    DirEntry& listed = entries->emplace_back();
    listed.name = entry.d_name;
    listed.directory = entry.d_type == DT_DIR ||
                       (entry.d_type == DT_UNKNOWN && IsDirectory(dirfd(listing.get()), listed.name));
  });
}

IoError RenameBelow(const PosixRoot& root, const std::string& from, const std::string& to) {
  if (!PathIsSafe(from) || !PathIsSafe(to)) return {EINVAL};
  UniqueFd from_directory, to_directory;
  std::string from_name, to_name;
  if (const IoError error = OpenParent(root, from, &from_directory, &from_name); !error.ok()) return error;
  if (const IoError error = OpenParent(root, to, &to_directory, &to_name); !error.ok()) return error;
  const int code = RenameExclusive(from_directory.get(), from_name, to_directory.get(), to_name);
  if (code != 0) return {code};
  if (const IoError error = SyncDirectory(to_directory.get()); !error.ok()) return error;
  return SyncDirectory(from_directory.get());
}

IoError RemoveBelow(const PosixRoot& root, const std::string& path) {
  if (!PathIsSafe(path)) return {EINVAL};
  UniqueFd directory;
  std::string name;
  if (const IoError error = OpenParent(root, path, &directory, &name); !error.ok()) return error;
  int code = Try([&] { return unlinkat(directory.get(), name.c_str(), 0); });
  if (code == EISDIR || (code == EPERM && IsDirectory(directory.get(), name))) {
    code = Try([&] { return unlinkat(directory.get(), name.c_str(), AT_REMOVEDIR); });
    if (code == EEXIST) code = ENOTEMPTY;
  }
  return {code};
}

IoError RemoveTemporariesBelow(const PosixRoot& root, const std::string& path, uint64_t* removed) {
  *removed = 0;
  std::vector<DirEntry> entries;
  if (const IoError error = ListBelow(root, path, &entries); !error.ok()) return error;
  UniqueFd directory;
  if (const IoError error = OpenBelow(root, path, O_RDONLY | O_DIRECTORY, 0, &directory); !error.ok())
    return error;
  for (const DirEntry& entry : entries) {
    if (entry.directory || !IsTemporaryName(entry.name)) continue;
    const int code = Try([&] { return unlinkat(directory.get(), entry.name.c_str(), 0); });
    if (code != 0 && code != ENOENT) return {code};
    if (code == 0) ++*removed;
  }
  return {};
}

}  // namespace tpu_sync_native
