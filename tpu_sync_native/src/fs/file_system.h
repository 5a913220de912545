// What the storage tier needs of a shared directory. One contract for a POSIX mount (posix_file_system.h),
// for an object store and for the doubles that tests plant faults with.
//
// Every call may block for as long as the medium likes (a hung mount blocks for ever), so only threads of an
// IoPool make them, and nobody joins those threads. No call throws; all are thread-safe. Paths are relative
// to the root, with '/' between names; names are checked by PathIsSafe before they come here, symbolic links
// are not followed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tpu_sync_native {

// 0, or an errno value. kShort is a file that ended earlier than asked.
struct IoError {
  static constexpr int kShort = -1;
  int code = 0;
  bool ok() const { return code == 0; }
  bool not_found() const;    // ENOENT, ESTALE, ENOTDIR
  bool no_space() const;     // ENOSPC, EDQUOT, EROFS: stop admitting, keep serving
  std::string text() const;  // for people: "ENOSPC: No space left on device"
};

struct IoVec {
  void* data;
  uint64_t bytes;
};

// What a medium can do; false or 0 means less. A caller asks instead of knowing names.
struct FileSystemTraits {
  std::string name;                  // for people: "posix, O_DIRECT, io_uring"
  bool appends_readable = true;      // what was appended and synced can be read before Close
  bool renames = true;               // Rename is atomic and exclusive creation works
  uint64_t alignment_bytes = 1;      // of offsets, lengths and addresses, to be fast (4096 for O_DIRECT)
  uint64_t io_bytes_best = 8 << 20;  // one read or write of this size runs at full speed
};

struct DirEntry {
  std::string name;
  bool directory = false;
};

// What may be used of a file system; what is kept back for root (ext4's reserved blocks) is in neither.
struct SpaceInfo {
  uint64_t total_bytes = 0, free_bytes = 0;  // both 0: unknown
};

// One open file. A reader's methods may be called by several threads at once, a writer's by one.
class ReadFile {
 public:
  virtual ~ReadFile() = default;
  // Fills all of `parts` from `offset` on, or fails. A vector of parts is one I/O as far as the medium can.
  virtual IoError Read(uint64_t offset, std::span<const IoVec> parts) = 0;
  virtual IoError Size(uint64_t* bytes) = 0;
};

class AppendFile {
 public:
  virtual ~AppendFile() = default;
  // Appends all of `parts`, or fails; then the file's end is not known any more and it is to be abandoned.
  virtual IoError Append(std::span<const IoVec> parts) = 0;
  // What was appended is durable when it returns.
  virtual IoError Sync() = 0;
  // Ends the file; an object becomes visible here. The destructor alone abandons it.
  virtual IoError Close() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual const FileSystemTraits& traits() const = 0;

  // Whether the root can be used, and what the medium can do (traits() tell afterwards). `why` says in words,
  // with the root's path, what is wrong. no_space() means: it can be read, nothing can be written now.
  virtual IoError CheckRoot(std::string* why) = 0;

  virtual IoError OpenRead(const std::string& path, std::unique_ptr<ReadFile>* file) = 0;
  // Fails with EEXIST when there is one. `bytes_expected` is a hint for striping and preallocation.
  virtual IoError OpenAppend(const std::string& path, uint64_t bytes_expected,
                             std::unique_ptr<AppendFile>* file) = 0;
  // Small whole files (leases, metadata, indexes): read whole, at most bytes_max, else EFBIG.
  virtual IoError ReadAll(const std::string& path, uint64_t bytes_max, std::string* data) = 0;
  // Publishes a whole file under its name at once and durably (temporary, fsync, rename, fsync of the
  // directory), replacing what was there; readers see the old one or the new one. exclusive: EEXIST instead
  // of replacing.
  virtual IoError Publish(const std::string& path, std::string_view data, bool exclusive) = 0;
  virtual IoError MakeDirectory(const std::string& path,
                                bool exclusive) = 0;  // parents too, unless exclusive
  // "" is the root. Symbolic links and other oddities are listed as files; they cannot be opened. EFBIG: more
  // entries than kListMax.
  virtual IoError List(const std::string& path, std::vector<DirEntry>* entries) = 0;
  // A file or a directory, atomic and durable. EEXIST when `to` is there.
  virtual IoError Rename(const std::string& from, const std::string& to) = 0;
  // A file or an empty directory. Not durable: it may be back after a crash of this host.
  virtual IoError Remove(const std::string& path) = 0;
  virtual IoError Space(SpaceInfo* space) = 0;
  // Removes what a Publish that never ended left directly in this directory. Only for directories in which
  // nobody publishes any more (of dead hosts). A medium without such left-overs needs no override.
  virtual IoError RemoveTemporaries(const std::string& path, uint64_t* removed) {
    (void)path;
    *removed = 0;
    return {};
  }
};

// Whether every name of the path is one that this project makes: letters, digits, '-', '_', '.', not starting
// with '.', no empty name, no "..", no leading '/'.
bool PathIsSafe(std::string_view path);

// Whether a name is that of a temporary which Publish (of any host) makes beside the file it publishes, and
// which is left over when the host dies. PathIsSafe refuses it: only RemoveTemporaries touches one.
bool IsTemporaryName(std::string_view name);

inline constexpr size_t kListMax = 1 << 20;

}  // namespace tpu_sync_native
