// A FileSystem around another one that shows every call to a hook, before and after, and lets the hook decide
// what comes of it. Faults (fault_plan.h) and kill points are made of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fs/file_system.h"

namespace tpu_sync_native::testing {

// One bit each, so that a fault can name several.
enum FileOp : uint32_t {
  kOpOpenRead = 1u << 0,
  kOpRead = 1u << 1,
  kOpSize = 1u << 2,
  kOpOpenAppend = 1u << 3,
  kOpAppend = 1u << 4,
  kOpSync = 1u << 5,
  kOpClose = 1u << 6,
  kOpReadAll = 1u << 7,
  kOpPublish = 1u << 8,
  kOpMakeDirectory = 1u << 9,
  kOpList = 1u << 10,
  kOpRename = 1u << 11,
  kOpRemove = 1u << 12,
  kOpSpace = 1u << 13,
  kOpCheckRoot = 1u << 14,
  kOpRemoveTemporaries = 1u << 15,
  kOpsWrite = kOpOpenAppend | kOpAppend | kOpSync | kOpClose | kOpPublish | kOpMakeDirectory | kOpRename |
              kOpRemove | kOpRemoveTemporaries,
  kOpsRead = kOpOpenRead | kOpRead | kOpSize | kOpReadAll | kOpList | kOpSpace | kOpCheckRoot,
  kOpsAll = kOpsWrite | kOpsRead,
};

struct FileCall {
  FileOp op;
  std::string path;     // of the open file, for calls on one
  std::string to;       // of a rename
  uint64_t offset = 0;  // of a read
  uint64_t bytes = 0;   // of a read, an append, a publish
};

// What a hook makes of a call that is about to happen. The default lets it happen.
struct FileVerdict {
  IoError error;                       // not ok: the call fails so, without reaching the files below ...
  std::optional<uint64_t> bytes_done;  // ... but for this many bytes, of a read or an append
  std::optional<std::vector<DirEntry>> listing{};  // what List answers instead
};

struct FileHooks {
  std::function<FileVerdict(const FileCall&)> before;          // may block, may kill the process
  std::function<void(const FileCall&, const IoError&)> after;  // the call is done
  std::function<void(const FileCall&, std::vector<DirEntry>&)>
      listed;  // what List found, to be kept or changed
};

// The first `bytes` of `parts`.
inline std::vector<IoVec> FirstBytes(std::span<const IoVec> parts, uint64_t bytes) {
  std::vector<IoVec> first;
  for (const IoVec& part : parts) {
    if (bytes == 0) break;
    first.push_back({part.data, std::min(part.bytes, bytes)});
    bytes -= first.back().bytes;
  }
  return first;
}

inline uint64_t BytesOf(std::span<const IoVec> parts) {
  uint64_t bytes = 0;
  for (const IoVec& part : parts) bytes += part.bytes;
  return bytes;
}

class HookedFiles : public FileSystem {
 public:
  HookedFiles(std::shared_ptr<FileSystem> below, FileHooks hooks)
      : below_(std::move(below)), hooks_(std::make_shared<FileHooks>(std::move(hooks))) {}

  const FileSystemTraits& traits() const override { return below_->traits(); }

  IoError CheckRoot(std::string* why) override {
    const IoError error = Call(*hooks_, {kOpCheckRoot, "", {}}, [&] { return below_->CheckRoot(why); });
    if (!error.ok() && why->empty()) *why = error.text();  // the hook's
    return error;
  }
  IoError RemoveTemporaries(const std::string& path, uint64_t* removed) override {
    return Call(*hooks_, {kOpRemoveTemporaries, path, {}},
                [&] { return below_->RemoveTemporaries(path, removed); });
  }
  IoError OpenRead(const std::string& path, std::unique_ptr<ReadFile>* file) override {
    return Call(*hooks_, {kOpOpenRead, path, {}}, [&] {
      std::unique_ptr<ReadFile> opened;
      const IoError error = below_->OpenRead(path, &opened);
      if (error.ok()) *file = std::make_unique<Reader>(std::move(opened), path, hooks_);
      return error;
    });
  }
  IoError OpenAppend(const std::string& path, uint64_t bytes, std::unique_ptr<AppendFile>* file) override {
    return Call(*hooks_, {kOpOpenAppend, path, {}}, [&] {
      std::unique_ptr<AppendFile> opened;
      const IoError error = below_->OpenAppend(path, bytes, &opened);
      if (error.ok()) *file = std::make_unique<Appender>(std::move(opened), path, hooks_);
      return error;
    });
  }
  IoError ReadAll(const std::string& path, uint64_t bytes_max, std::string* data) override {
    return Call(*hooks_, {kOpReadAll, path, {}}, [&] { return below_->ReadAll(path, bytes_max, data); });
  }
  IoError Publish(const std::string& path, std::string_view data, bool exclusive) override {
    return Call(*hooks_, {kOpPublish, path, {}, 0, data.size()},
                [&] { return below_->Publish(path, data, exclusive); });
  }
  IoError MakeDirectory(const std::string& path, bool exclusive) override {
    return Call(*hooks_, {kOpMakeDirectory, path, {}},
                [&] { return below_->MakeDirectory(path, exclusive); });
  }
  IoError List(const std::string& path, std::vector<DirEntry>* entries) override {
    const FileCall call{kOpList, path, {}};
    std::optional<std::vector<DirEntry>> instead;
    const IoError error = Call(*hooks_, call, [&] { return below_->List(path, entries); }, &instead);
    if (!error.ok()) return error;
    if (instead) {
      *entries = std::move(*instead);
    } else if (hooks_->listed) {
      hooks_->listed(call, *entries);
    }
    return error;
  }
  IoError Rename(const std::string& from, const std::string& to) override {
    return Call(*hooks_, {kOpRename, from, to}, [&] { return below_->Rename(from, to); });
  }
  IoError Remove(const std::string& path) override {
    return Call(*hooks_, {kOpRemove, path, {}}, [&] { return below_->Remove(path); });
  }
  IoError Space(SpaceInfo* space) override {
    return Call(*hooks_, {kOpSpace, "", {}}, [&] { return below_->Space(space); });
  }

 private:
  template <typename Make>
  static IoError Call(const FileHooks& hooks, const FileCall& call, const Make& make,
                      std::optional<std::vector<DirEntry>>* listing = nullptr) {
    FileVerdict verdict;
    if (hooks.before) verdict = hooks.before(call);
    IoError error = verdict.error;
    if (error.ok()) error = make();
    if (listing != nullptr) *listing = std::move(verdict.listing);
    if (hooks.after) hooks.after(call, error);
    return error;
  }

  // A transfer of bytes; a verdict may let a part of it happen.
  template <typename Make>
  static IoError Transfer(const FileHooks& hooks, const FileCall& call, std::span<const IoVec> parts,
                          const Make& make) {
    FileVerdict verdict;
    if (hooks.before) verdict = hooks.before(call);
    IoError error = verdict.error;
    if (error.ok()) {
      error = make(parts);
    } else if (verdict.bytes_done && *verdict.bytes_done != 0) {
      const IoError part = make(FirstBytes(parts, *verdict.bytes_done));
      if (!part.ok()) error = part;
    }
    if (hooks.after) hooks.after(call, error);
    return error;
  }

  class Reader : public ReadFile {
   public:
    Reader(std::unique_ptr<ReadFile> below, std::string path, std::shared_ptr<FileHooks> hooks)
        : below_(std::move(below)), path_(std::move(path)), hooks_(std::move(hooks)) {}
    IoError Read(uint64_t offset, std::span<const IoVec> parts) override {
      return Transfer(*hooks_, {kOpRead, path_, {}, offset, BytesOf(parts)}, parts,
                      [&](std::span<const IoVec> some) { return below_->Read(offset, some); });
    }
    IoError Size(uint64_t* bytes) override {
      return Call(*hooks_, {kOpSize, path_, {}}, [&] { return below_->Size(bytes); });
    }

   private:
    const std::unique_ptr<ReadFile> below_;
    const std::string path_;
    const std::shared_ptr<FileHooks> hooks_;
  };

  class Appender : public AppendFile {
   public:
    Appender(std::unique_ptr<AppendFile> below, std::string path, std::shared_ptr<FileHooks> hooks)
        : below_(std::move(below)), path_(std::move(path)), hooks_(std::move(hooks)) {}
    IoError Append(std::span<const IoVec> parts) override {
      return Transfer(*hooks_, {kOpAppend, path_, {}, 0, BytesOf(parts)}, parts,
                      [&](std::span<const IoVec> some) { return below_->Append(some); });
    }
    IoError Sync() override {
      return Call(*hooks_, {kOpSync, path_, {}}, [&] { return below_->Sync(); });
    }
    IoError Close() override {
      return Call(*hooks_, {kOpClose, path_, {}}, [&] { return below_->Close(); });
    }

   private:
    const std::unique_ptr<AppendFile> below_;
    const std::string path_;
    const std::shared_ptr<FileHooks> hooks_;
  };

  const std::shared_ptr<FileSystem> below_;
  const std::shared_ptr<FileHooks> hooks_;
};

}  // namespace tpu_sync_native::testing
