// A FileSystem in memory that keeps apart what is written and what is durable, and forgets the difference
// when it crashes: bytes appended since the last Sync, and directory entries made or removed since the
// directory was last synced (by the first Sync of a file in it, a Publish, a Rename, a MakeDirectory).
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fs/file_system.h"
#include "memory_tree.h"

namespace tpu_sync_native::testing {

class MemoryFiles : public FileSystem {
 public:
  explicit MemoryFiles(FileSystemTraits traits = {}) : traits_(std::move(traits)) {
    if (traits_.name.empty()) traits_.name = "memory";
  }

  const FileSystemTraits& traits() const override { return traits_; }

  // ---- for tests ----

  // Power fails: open files are dead (EIO), only what was durable is left. seed != 0: by chance, parts of
  // what was not durable survive too, as they do on real media: some entries, and part of a tail, perhaps as
  // zeros.
  void Crash(uint64_t seed = 0) {
    const std::lock_guard lock(mutex_);
    ++life_;
    std::mt19937_64 random(seed);
    Tree left = durable_;
    if (seed != 0) {
      for (const auto& [path, node] : files_.files) {
        if (!left.files.contains(path) && random() % 2 == 0) left.files[path] = node;
      }
      for (const auto& [path, node] : durable_.files) {
        if (!files_.files.contains(path) && random() % 2 == 0) left.files.erase(path);
      }
    }
    for (auto& [path, node] : left.files) {
      auto copy = std::make_shared<Node>(*node);
      const size_t tail = copy->data.size() - copy->synced;
      size_t kept = 0;
      if (seed != 0 && tail != 0) {
        kept = random() % (tail + 1);
        const size_t zeros = random() % 2 == 0 ? random() % (kept + 1) : 0;
        std::fill_n(copy->data.begin() + static_cast<ptrdiff_t>(copy->synced + kept - zeros), zeros, '\0');
      }
      copy->data.resize(copy->synced + kept);
      copy->synced = copy->data.size();
      node = std::move(copy);
    }
    files_ = std::move(left);
    durable_ = files_;
  }

  // The bytes of a file as a reader sees them now.
  std::optional<std::string> Peek(const std::string& path) const {
    const std::lock_guard lock(mutex_);
    const auto found = files_.files.find(path);
    if (found == files_.files.end()) return std::nullopt;
    return found->second->data;
  }

  // Plants a whole durable file, of any name (foreign files), with the directories above it.
  void Put(const std::string& path, std::string data) {
    const std::lock_guard lock(mutex_);
    AddParents(path);
    auto node = std::make_shared<Node>();
    node->synced = data.size();
    node->data = std::move(data);
    files_.files[path] = durable_.files[path] = std::move(node);
  }

  // Changes one byte under everybody's feet. False: no such byte.
  bool Flip(const std::string& path, uint64_t offset, uint8_t mask) {
    const std::lock_guard lock(mutex_);
    const auto found = files_.files.find(path);
    if (found == files_.files.end() || offset >= found->second->data.size()) return false;
    found->second->data[offset] = static_cast<char>(found->second->data[offset] ^ mask);
    return true;
  }

  bool Truncate(const std::string& path, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = files_.files.find(path);
    if (found == files_.files.end() || bytes > found->second->data.size()) return false;
    found->second->data.resize(bytes);
    found->second->synced = std::min<size_t>(found->second->synced, bytes);
    return true;
  }

  std::vector<std::string> FileNames() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [path, node] : files_.files) names.push_back(path);
    return names;
  }

  // A disk of this size: what does not fit any more is ENOSPC, after as much as fits. 0: no end.
  void SetCapacity(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    capacity_bytes_ = bytes;
  }

  uint64_t UsedBytes() const {
    const std::lock_guard lock(mutex_);
    return UsedLocked();
  }

  // ---- the contract ----

  IoError CheckRoot(std::string* why) override {
    why->clear();
    return {};
  }

  IoError OpenRead(const std::string& path, std::unique_ptr<ReadFile>* file) override {
    const std::lock_guard lock(mutex_);
    if (!PathIsSafe(path)) return {EINVAL};
    if (files_.directories.contains(path)) return {EISDIR};
    const auto found = files_.files.find(path);
    if (found == files_.files.end()) return {ENOENT};
    *file = std::make_unique<Reader>(*this, found->second, life_);
    return {};
  }

  IoError OpenAppend(const std::string& path, uint64_t, std::unique_ptr<AppendFile>* file) override {
    const std::lock_guard lock(mutex_);
    if (const IoError error = CheckNew(path); !error.ok()) return error;
    auto node = std::make_shared<Node>();
    if (traits_.appends_readable) files_.files[path] = node;
    *file = std::make_unique<Appender>(*this, std::move(node), path, life_);
    return {};
  }

  IoError ReadAll(const std::string& path, uint64_t bytes_max, std::string* data) override {
    const std::lock_guard lock(mutex_);
    if (!PathIsSafe(path)) return {EINVAL};
    if (files_.directories.contains(path)) return {EISDIR};
    const auto found = files_.files.find(path);
    if (found == files_.files.end()) return {ENOENT};
    if (found->second->data.size() > bytes_max) return {EFBIG};
    *data = found->second->data;
    return {};
  }

  IoError Publish(const std::string& path, std::string_view data, bool exclusive) override {
    const std::lock_guard lock(mutex_);
    const IoError error = CheckNew(path);
    if (!error.ok() && (error.code != EEXIST || exclusive)) return error;
    if (files_.directories.contains(path)) return {EISDIR};
    if (data.size() > RoomLocked()) return {ENOSPC};
    auto node = std::make_shared<Node>();
    node->data = data;
    node->synced = data.size();
    files_.files[path] = std::move(node);
    SyncDirectory(ParentOf(path));
    return {};
  }

  IoError MakeDirectory(const std::string& path, bool exclusive) override {
    const std::lock_guard lock(mutex_);
    if (!PathIsSafe(path)) return {EINVAL};
    if (files_.files.contains(path)) return {EEXIST};
    if (exclusive) {
      if (files_.directories.contains(path)) return {EEXIST};
      if (!files_.directories.contains(ParentOf(path))) return {ENOENT};
    }
    for (std::string above = path; !above.empty(); above = ParentOf(above)) {
      if (files_.files.contains(above)) return {ENOTDIR};
    }
    AddParents(path + "/x");
    return {};
  }

  IoError List(const std::string& path, std::vector<DirEntry>* entries) override {
    const std::lock_guard lock(mutex_);
    if (!path.empty() && !PathIsSafe(path)) return {EINVAL};
    if (files_.files.contains(path)) return {ENOTDIR};
    if (!files_.directories.contains(path)) return {ENOENT};
    entries->clear();
    for (const auto& [name, node] : files_.files) {
      if (ParentOf(name) == path) entries->push_back({NameOf(name), false});
    }
    for (const std::string& name : files_.directories) {
      if (!name.empty() && ParentOf(name) == path) entries->push_back({NameOf(name), true});
    }
    return {};
  }

  IoError Rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    if (!PathIsSafe(from)) return {EINVAL};
    if (!traits_.renames) return {EOPNOTSUPP};
    if (!files_.files.contains(from) && !files_.directories.contains(from)) return {ENOENT};
    if (const IoError error = CheckNew(to); !error.ok()) return error;
    if (to.starts_with(from + "/")) return {EINVAL};
    SyncEntry(from);  // the entry itself moves durably, though not what was not durable below it
    files_.Move(from, to);
    durable_.Move(from, to);
    SyncDirectory(ParentOf(from));
    SyncDirectory(ParentOf(to));
    return {};
  }

  IoError Remove(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    if (!PathIsSafe(path)) return {EINVAL};
    if (files_.files.erase(path) != 0) return {};
    if (!files_.directories.contains(path)) return {ENOENT};
    const auto inside = [&](const std::string& name) { return name.starts_with(path + "/"); };
    for (const auto& [name, node] : files_.files) {
      if (inside(name)) return {ENOTEMPTY};
    }
    if (std::any_of(files_.directories.begin(), files_.directories.end(), inside)) return {ENOTEMPTY};
    files_.directories.erase(path);
    durable_.directories.erase(path);
    return {};
  }

  IoError RemoveTemporaries(const std::string& path, uint64_t* removed) override {
    const std::lock_guard lock(mutex_);
    *removed = std::erase_if(files_.files, [&](const auto& file) {
      return ParentOf(file.first) == path && IsTemporaryName(NameOf(file.first));
    });
    return {};
  }

  IoError Space(SpaceInfo* space) override {
    const std::lock_guard lock(mutex_);
    *space = {};
    if (capacity_bytes_ != 0) *space = {capacity_bytes_, RoomLocked()};
    return {};
  }

 private:
  using Node = MemoryNode;
  using Tree = MemoryTree;

  class Reader : public ReadFile {
   public:
    Reader(MemoryFiles& files, std::shared_ptr<Node> node, uint64_t life)
        : files_(files), node_(std::move(node)), life_(life) {}

    IoError Read(uint64_t offset, std::span<const IoVec> parts) override {
      const std::lock_guard lock(files_.mutex_);
      if (life_ != files_.life_) return {EIO};
      for (const IoVec& part : parts) {
        const uint64_t size = node_->data.size();
        const uint64_t bytes = offset < size ? std::min(part.bytes, size - offset) : 0;
        if (bytes != 0) std::memcpy(part.data, node_->data.data() + offset, bytes);
        if (bytes < part.bytes) return {IoError::kShort};
        offset += bytes;
      }
      return {};
    }

    IoError Size(uint64_t* bytes) override {
      const std::lock_guard lock(files_.mutex_);
      if (life_ != files_.life_) return {EIO};
      *bytes = node_->data.size();
      return {};
    }

   private:
    MemoryFiles& files_;
    const std::shared_ptr<Node> node_;
    const uint64_t life_;
  };

  class Appender : public AppendFile {
   public:
    Appender(MemoryFiles& files, std::shared_ptr<Node> node, std::string path, uint64_t life)
        : files_(files), node_(std::move(node)), path_(std::move(path)), life_(life) {}

    IoError Append(std::span<const IoVec> parts) override {
      const std::lock_guard lock(files_.mutex_);
      if (life_ != files_.life_) return {EIO};
      if (closed_) return {EBADF};
      for (const IoVec& part : parts) {
        const uint64_t bytes = std::min(part.bytes, files_.RoomLocked());
        node_->data.append(static_cast<const char*>(part.data), bytes);
        if (bytes < part.bytes) return {ENOSPC};
      }
      return {};
    }

    IoError Sync() override {
      const std::lock_guard lock(files_.mutex_);
      if (life_ != files_.life_) return {EIO};
      if (closed_) return {EBADF};
      node_->synced = node_->data.size();
      if (!entry_synced_) files_.SyncDirectory(ParentOf(path_));
      entry_synced_ = true;
      return {};
    }

    IoError Close() override {
      const std::lock_guard lock(files_.mutex_);
      if (life_ != files_.life_) return {EIO};
      if (closed_) return {EBADF};
      closed_ = true;
      if (files_.traits_.appends_readable) return {};
      if (const IoError error = files_.CheckNew(path_); !error.ok()) return error;
      node_->synced = node_->data.size();
      files_.files_.files[path_] = node_;
      files_.SyncDirectory(ParentOf(path_));
      return {};
    }

   private:
    MemoryFiles& files_;
    const std::shared_ptr<Node> node_;
    const std::string path_;
    const uint64_t life_;
    bool closed_ = false;
    bool entry_synced_ = false;
  };

  IoError CheckNew(const std::string& path) const {
    if (!PathIsSafe(path)) return {EINVAL};
    const std::string parent = ParentOf(path);
    if (files_.files.contains(parent)) return {ENOTDIR};
    // An object store has no directories to miss.
    if (!files_.directories.contains(parent) && traits_.renames) return {ENOENT};
    if (files_.files.contains(path) || files_.directories.contains(path)) return {EEXIST};
    return {};
  }

  void AddParents(const std::string& path) {
    for (std::string above = ParentOf(path); !above.empty(); above = ParentOf(above)) {
      files_.directories.insert(above);
      durable_.directories.insert(above);
    }
  }

  void SyncEntry(const std::string& path) {
    const auto now = files_.files.find(path);
    if (now != files_.files.end()) {
      durable_.files[path] = now->second;
    } else {
      durable_.files.erase(path);
    }
  }

  void SyncDirectory(const std::string& directory) {
    AddParents(directory + "/x");
    std::set<std::string> names;
    for (const Tree* tree : {&files_, &durable_}) {
      for (const auto& [path, node] : tree->files) {
        if (ParentOf(path) == directory) names.insert(path);
      }
    }
    for (const std::string& name : names) SyncEntry(name);
  }

  uint64_t UsedLocked() const {
    uint64_t used = 0;
    for (const auto& [path, node] : files_.files) used += node->data.size();
    return used;
  }
  uint64_t RoomLocked() const {
    if (capacity_bytes_ == 0) return UINT64_MAX;
    const uint64_t used = UsedLocked();
    return used < capacity_bytes_ ? capacity_bytes_ - used : 0;
  }

  FileSystemTraits traits_;
  mutable std::mutex mutex_;
  Tree files_;
  Tree durable_;
  uint64_t capacity_bytes_ = 0;
  uint64_t life_ = 0;  // raised by every crash
};

}  // namespace tpu_sync_native::testing
