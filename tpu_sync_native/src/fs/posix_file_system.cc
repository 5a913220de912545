#include "fs/posix_file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "fs/io_plan.h"
#include "fs/posix_file.h"
#include "fs/posix_names.h"
#include "fs/posix_root.h"
#include "fs/uring.h"

namespace tpu_sync_native {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kProbePause = std::chrono::seconds(30);  // after a probe that said neither yes nor no

enum class Direct : uint8_t { kUnknown = 0, kYes = 1, kNo = 2 };

// Whether the root went away under its descriptor: unmounted, served anew, deleted.
bool RootIsGone(const PosixRoot& root, const IoError& error) {
  switch (error.code) {
    case ESTALE:
    case ENOTCONN:
    case ESHUTDOWN:
    case ENODEV:
      return true;
    case ENOENT: {
      struct stat about {};
      return fstat(root.directory.get(), &about) == 0 && about.st_nlink == 0;
    }
    default:
      return false;
  }
}

// Clears O_NONBLOCK, which opening needed so that a planted FIFO does not hang it: a ring takes it for "do
// not wait". Anything but a regular file is not ours.
IoError RegularFile(int fd) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return {errno};
  if (S_ISDIR(about.st_mode)) return {EISDIR};
  if (!S_ISREG(about.st_mode)) return {EINVAL};
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) return {errno};
  return {};
}

class PosixFileSystem final : public FileSystem {
 public:
  PosixFileSystem(std::string root, const PosixOptions& options)
      : path_(std::move(root)), options_(options), ring_(Uring::WhyNot().empty()) {
    const bool ring = ring_ && (options.ring_reads || options.ring_writes);
    for (const Direct direct : {Direct::kUnknown, Direct::kYes, Direct::kNo}) {
      FileSystemTraits& traits = traits_[static_cast<size_t>(direct)];
      traits.name = std::string("posix") + (direct == Direct::kYes  ? ", O_DIRECT"
                                            : direct == Direct::kNo ? ", buffered"
                                                                    : "");
      if (ring) traits.name += ", io_uring";
      traits.alignment_bytes = direct == Direct::kNo ? 1 : kDirectUnit;
    }
    if (!options.direct) direct_ = Direct::kNo;
  }

  const FileSystemTraits& traits() const override { return traits_[static_cast<size_t>(direct_.load())]; }

  IoError CheckRoot(std::string* why) override {
    std::shared_ptr<const PosixRoot> root;
    if (const IoError error = Root(&root, why); !error.ok()) return error;
    IoError error = Probe(*root);
    if (RootIsGone(*root, error) && Reopen(root)) {
      if (error = Root(&root, why); !error.ok()) return error;
      error = Probe(*root);
    }
    why->clear();
    if (error.ok()) return {};
    *why = "storage root " + path_ + ": ";
    if (error.code == EACCES || error.code == EPERM) {
      struct stat about {};
      fstat(root->directory.get(), &about);
      char mode[8];
      std::snprintf(mode, sizeof mode, "%04o", about.st_mode & 07777);
      *why += "not writable by user " + std::to_string(geteuid()) + ", group " + std::to_string(getegid()) +
              " (it belongs to user " + std::to_string(about.st_uid) + ", group " +
              std::to_string(about.st_gid) + ", mode " + mode + ")";
    } else {
      *why += error.code == EROFS ? "is mounted read-only" : "a probe could not be written: " + error.text();
    }
    return error;
  }

  IoError OpenRead(const std::string& path, std::unique_ptr<ReadFile>* file) override {
    return WithRoot([&](const PosixRoot& root) -> IoError {
      if (path.empty()) return {EISDIR};
      bool direct = WantDirect(root);
      UniqueFd fd;
      IoError error = OpenBelow(root, path, O_RDONLY | O_NONBLOCK | (direct ? O_DIRECT : 0), 0, &fd);
      if (error.code == EINVAL && direct) {  // not for this file; a directory says so too
        direct = false;
        error = OpenBelow(root, path, O_RDONLY | O_NONBLOCK, 0, &fd);
      }
      if (error.ok()) error = RegularFile(fd.get());
      if (error.ok()) *file = MakePosixReader(std::move(fd), Io(direct));
      return error;
    });
  }

  IoError OpenAppend(const std::string& path, uint64_t bytes_expected,
                     std::unique_ptr<AppendFile>* file) override {
    return WithRoot([&](const PosixRoot& root) -> IoError {
      if (!PathIsSafe(path)) return {EINVAL};
      const bool direct = WantDirect(root);
      UniqueFd directory;
      std::string name;
      if (const IoError error = OpenParent(root, path, &directory, &name); !error.ok()) return error;
      UniqueFd fd;
      if (const IoError error = CreateNew(directory.get(), name, root.file_mode, direct, &fd); !error.ok()) {
        return error;
      }
      ShareWithGroup(root, fd.get(), root.file_mode);
      *file = MakePosixAppender(std::move(fd), std::move(directory), options_.reserve ? bytes_expected : 0,
                                Io(direct));
      return {};
    });
  }

  IoError ReadAll(const std::string& path, uint64_t bytes_max, std::string* data) override {
    return WithRoot([&](const PosixRoot& root) -> IoError {
      if (path.empty()) return {EISDIR};
      UniqueFd fd;
      IoError error = OpenBelow(root, path, O_RDONLY | O_NONBLOCK, 0, &fd);
      if (error.ok()) error = RegularFile(fd.get());
      if (error.ok()) error = ReadWhole(fd.get(), bytes_max, data);
      return error;
    });
  }

  IoError Publish(const std::string& path, std::string_view data, bool exclusive) override {
    return WithRoot([&](const PosixRoot& root) { return PublishBelow(root, path, data, exclusive); });
  }
  IoError MakeDirectory(const std::string& path, bool exclusive) override {
    return WithRoot([&](const PosixRoot& root) { return MakeDirectoryBelow(root, path, exclusive); });
  }
  IoError List(const std::string& path, std::vector<DirEntry>* entries) override {
    return WithRoot([&](const PosixRoot& root) { return ListBelow(root, path, entries); });
  }
  IoError Rename(const std::string& from, const std::string& to) override {
    return WithRoot([&](const PosixRoot& root) { return RenameBelow(root, from, to); });
  }
  IoError Remove(const std::string& path) override {
    return WithRoot([&](const PosixRoot& root) { return RemoveBelow(root, path); });
  }
  IoError RemoveTemporaries(const std::string& path, uint64_t* removed) override {
    return WithRoot([&](const PosixRoot& root) { return RemoveTemporariesBelow(root, path, removed); });
  }

  IoError Space(SpaceInfo* space) override {
    return WithRoot([&](const PosixRoot& root) -> IoError {
      struct statvfs about {};
      if (fstatvfs(root.directory.get(), &about) != 0) return {errno};
      *space = UsableSpace(about);
      return {};
    });
  }

 private:
  // Nobody holds the mutex while the medium is asked: it may hang.
  IoError Root(std::shared_ptr<const PosixRoot>* root, std::string* why) {
    {
      const std::lock_guard lock(mutex_);
      if (root_ != nullptr) {
        *root = root_;
        return {};
      }
    }
    if (const IoError error = OpenRoot(path_, root, why); !error.ok()) return error;
    const std::lock_guard lock(mutex_);
    if (root_ == nullptr) root_ = *root;
    *root = root_;
    return {};
  }

  // True when there is another root to try again with.
  bool Reopen(const std::shared_ptr<const PosixRoot>& old) {
    std::shared_ptr<const PosixRoot> opened;
    std::string why;
    if (!OpenRoot(path_, &opened, &why).ok() || opened->type != old->type) return false;
    const std::lock_guard lock(mutex_);
    if (root_ == old) root_ = std::move(opened);
    return true;
  }

  template <typename Call>
  IoError WithRoot(const Call& call) {
    std::string why;
    std::shared_ptr<const PosixRoot> root;
    if (const IoError error = Root(&root, &why); !error.ok()) return error;
    const IoError error = call(*root);
    if (error.ok() || !RootIsGone(*root, error) || !Reopen(root)) return error;
    if (const IoError again = Root(&root, &why); !again.ok()) return again;
    return call(*root);
  }

  PosixIo Io(bool direct) const {
    return {direct, ring_ && options_.ring_reads, ring_ && options_.ring_writes};
  }

  bool WantDirect(const PosixRoot& root) {
    if (direct_.load() == Direct::kUnknown) {
      {
        const std::lock_guard lock(mutex_);
        const Clock::time_point now = Clock::now();
        if (now < next_probe_) return false;
        next_probe_ = now + kProbePause;
      }
      Probe(root);
    }
    return direct_.load() == Direct::kYes;
  }

  // Writes a unit with O_DIRECT and reads it back. An error is one of writing at all.
  IoError Probe(const PosixRoot& root) {
    const std::string name = NewTemporaryName();
    const int base = root.directory.get();
    UniqueFd fd;
    bool direct = options_.direct;
    IoError error = CreateNew(base, name, 0600, direct, &fd);
    if (error.code == EINVAL && direct) {
      // Some file systems make the file before they refuse the flag.
      unlinkat(base, name.c_str(), 0);
      direct = false;
      error = CreateNew(base, name, 0600, direct, &fd);
    }
    if (!error.ok()) return error;
    struct Free {
      void operator()(void* bytes) const { std::free(bytes); }
    };
    const std::unique_ptr<void, Free> unit(std::aligned_alloc(kDirectUnit, kDirectUnit));
    if (unit == nullptr) return {ENOMEM};
    std::memset(unit.get(), 0x5a, kDirectUnit);
    iovec whole{unit.get(), kDirectUnit};
    ssize_t moved = pwritev(fd.get(), &whole, 1, 0);
    if (moved < 0 && errno == EINVAL && direct) {
      direct = false;
      fcntl(fd.get(), F_SETFL, 0);
      moved = pwritev(fd.get(), &whole, 1, 0);
    }
    if (moved < 0) error = {errno};
    if (moved >= 0 && moved != static_cast<ssize_t>(kDirectUnit)) error = {ENOSPC};
    if (error.ok() && direct) {
      std::memset(unit.get(), 0, kDirectUnit);
      moved = preadv(fd.get(), &whole, 1, 0);
      const auto* bytes = static_cast<const uint8_t*>(unit.get());
      direct =
          moved == static_cast<ssize_t>(kDirectUnit) && bytes[0] == 0x5a && bytes[kDirectUnit - 1] == 0x5a;
    }
    unlinkat(base, name.c_str(), 0);
    if (error.ok()) direct_.store(direct ? Direct::kYes : Direct::kNo);
    return error;
  }

  const std::string path_;
  const PosixOptions options_;
  const bool ring_;
  FileSystemTraits traits_[3];
  std::atomic<Direct> direct_{Direct::kUnknown};
  std::mutex mutex_;
  std::shared_ptr<const PosixRoot> root_;
  Clock::time_point next_probe_;
};

}  // namespace

std::shared_ptr<FileSystem> MakePosixFileSystem(std::string root, const PosixOptions& options) {
  return std::make_shared<PosixFileSystem>(std::move(root), options);
}

}  // namespace tpu_sync_native
