#include "fs/posix_root.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>

namespace tpu_sync_native {
namespace {

// openat that is tried again after a signal.
int OpenAt(int directory, const char* name, int flags, mode_t mode) {
  for (;;) {
    const int fd = openat(directory, name, flags | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd >= 0 || errno != EINTR) return fd;
  }
}

// The whole path in one call; ENOSYS where the kernel (5.6) or a seccomp profile does not have it.
int OpenAt2(int directory, const char* path, int flags, mode_t mode) {
  static std::atomic<bool> absent{false};
  if (absent.load(std::memory_order_relaxed)) {
    errno = ENOSYS;
    return -1;
  }
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC | O_NOFOLLOW);
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  for (;;) {
    const long fd = syscall(SYS_openat2, directory, path, &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    if (errno == EINTR || errno == EAGAIN) continue;  // EAGAIN: something was renamed on the way
    // EPERM is how seccomp profiles refuse calls they do not know: the walk will tell whether it was that.
    if (errno == ENOSYS || errno == EPERM) {
      if (errno == ENOSYS) absent.store(true, std::memory_order_relaxed);
      errno = ENOSYS;
    }
    return -1;
  }
}

// The same, name by name.
int Walk(int root, const std::string& path, int flags, mode_t mode) {
  UniqueFd held;
  int directory = root;
  size_t begin = 0;
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', begin)) {
    UniqueFd next(OpenAt(directory, path.substr(begin, slash - begin).c_str(), O_PATH | O_DIRECTORY, 0));
    if (!next) return -1;
    held = std::move(next);
    directory = held.get();
    begin = slash + 1;
  }
  return OpenAt(directory, path.c_str() + begin, flags, mode);
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

IoError OpenRoot(const std::string& path, std::shared_ptr<const PosixRoot>* root, std::string* why) {
  auto opened = std::make_shared<PosixRoot>();
  opened->directory = UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened->directory) {
    const IoError error{errno};
    *why = "storage root " + path + ": " +
           (error.code == ENOENT    ? "does not exist; make the directory or mount the file system first"
            : error.code == ENOTDIR ? "is not a directory"
                                    : error.text());
    return error;
  }
  struct stat about {};
  struct statfs system {};
  if (fstat(opened->directory.get(), &about) != 0 || fstatfs(opened->directory.get(), &system) != 0) {
    const IoError error{errno};
    *why = "storage root " + path + ": " + error.text();
    return error;
  }
  opened->type = static_cast<long>(system.f_type);
  if ((about.st_mode & S_IWGRP) != 0) {
    opened->group = true;
    opened->file_mode = 0660;
    opened->directory_mode = 0770 | (about.st_mode & S_ISGID);
  }
  *root = std::move(opened);
  return {};
}

IoError OpenBelow(const PosixRoot& root, const std::string& path, int flags, mode_t mode, UniqueFd* fd) {
  if (!path.empty() && !PathIsSafe(path)) return {EINVAL};
  const int base = root.directory.get();
  int opened = -1;
  if (path.empty()) {
    opened = OpenAt(base, ".", flags, mode);
  } else if (path.find('/') == std::string::npos) {
    opened = OpenAt(base, path.c_str(), flags, mode);
  } else {
    opened = OpenAt2(base, path.c_str(), flags, mode);
    if (opened < 0 && errno == ENOSYS) opened = Walk(base, path, flags, mode);
  }
  if (opened < 0) return {errno};
  *fd = UniqueFd(opened);
  return {};
}

IoError OpenParent(const PosixRoot& root, const std::string& path, UniqueFd* directory, std::string* name) {
  const size_t slash = path.rfind('/');
  *name = slash == std::string::npos ? path : path.substr(slash + 1);
  return OpenBelow(root, slash == std::string::npos ? "" : path.substr(0, slash), O_RDONLY | O_DIRECTORY, 0,
                   directory);
}

IoError SyncDirectory(int directory) {
  while (fsync(directory) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINVAL || errno == ENOTSUP || errno == EBADF)
      return {};  // it cannot; some network ones say so
    return {errno};
  }
  return {};
}

void ShareWithGroup(const PosixRoot& root, int fd, mode_t mode) {
  // Where the caller may not (a mount that maps owners) the mount decides, and access is checked at use.
  if (root.group && fchmod(fd, mode) != 0) return;
}

SpaceInfo UsableSpace(const struct statvfs& about) {
  const uint64_t used = about.f_blocks - std::min(about.f_bfree, about.f_blocks), free = about.f_bavail;
  return {.total_bytes = (used + free) * about.f_frsize, .free_bytes = free * about.f_frsize};
}

std::string NewTemporaryName() {
  static std::atomic<uint64_t> last{0};
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof random)) random = 0;
  random ^= last.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15ULL;
  char name[64];
  std::snprintf(name, sizeof name, ".tmp-%d-%016llx", getpid(), static_cast<unsigned long long>(random));
  return name;
}

}  // namespace tpu_sync_native
