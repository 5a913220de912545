// The root directory of a POSIX file system as a descriptor, and the only ways from it to anything else:
// names one below the other, no symbolic link among them, nothing outside.
#pragma once

#include <sys/statvfs.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "fs/file_system.h"

namespace tpu_sync_native {

class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// One opening of the root. Everything else is relative to `directory`.
struct PosixRoot {
  UniqueFd directory;
  // Group access follows the root's: a root that its group may write to (fsGroup, setgid) makes files 0660
  // and directories 2770, else 0600 and 0700.
  mode_t file_mode = 0600;
  mode_t directory_mode = 0700;
  bool group = false;  // the modes are set whatever the umask says
  long type = 0;       // of the file system, as statfs says
};

// Opens it; the path itself may lead over symbolic links. On an error, `why` says it in words with the path.
IoError OpenRoot(const std::string& path, std::shared_ptr<const PosixRoot>* root, std::string* why);

// Opens `path` below the root with open(2)'s flags; no symbolic link is followed. "" is the root itself.
IoError OpenBelow(const PosixRoot& root, const std::string& path, int flags, mode_t mode, UniqueFd* fd);
// The directory that holds `path`, readable (so that it can be synced), and the last name.
IoError OpenParent(const PosixRoot& root, const std::string& path, UniqueFd* directory, std::string* name);
// Makes new directory entries durable, as far as the file system can.
IoError SyncDirectory(int directory);
// Gives what was made just now the root's group mode.
void ShareWithGroup(const PosixRoot& root, int fd, mode_t mode);

// As df has it: what is used, and what anyone but root may still use, are the whole.
SpaceInfo UsableSpace(const struct statvfs& about);

// Names of temporaries: ".tmp-<pid>-<16 hex digits>".
std::string NewTemporaryName();

}  // namespace tpu_sync_native
