#include "storage/segment_table.h"

#include <cstring>
#include <deque>
#include <iterator>
#include <list>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "segment/names.h"

namespace tpu_sync_native {
namespace {

// A number given free is used again only when so many others wait, so that a promote which was queued with it
// meets no other segment under it.
constexpr size_t kNumbersAside = 4096;

std::string IdentityKey(const uint8_t host_id[16], const uint8_t namespace_id[16], uint64_t number) {
  std::string key(16 + 16 + sizeof(number), '\0');
  std::memcpy(key.data(), host_id, 16);
  std::memcpy(key.data() + 16, namespace_id, 16);
  std::memcpy(key.data() + 32, &number, sizeof(number));
  return key;
}

}  // namespace

struct SegmentTable::Impl {
  struct OpenFile {
    uint32_t id;
    std::shared_ptr<ReadFile> file;
  };
  using Files = std::list<OpenFile>;  // the latest used first

  std::shared_ptr<Segment> At(uint32_t id) const {  // null when there is none; needs the mutex
    return id < by_id.size() ? by_id[id] : nullptr;
  }
  // Takes the segment's file out of the cache; needs the mutex. The caller lets go of it without the mutex:
  // closing may block in the medium.
  std::shared_ptr<ReadFile> TakeFile(uint32_t id) {
    const auto found = open_by_id.find(id);
    if (found == open_by_id.end()) return nullptr;
    std::shared_ptr<ReadFile> file = std::move(found->second->file);
    open.erase(found->second);
    open_by_id.erase(found);
    return file;
  }

  std::shared_ptr<FileSystem> files;
  size_t open_files_max = 0;

  // Guards what follows, and Segment::directory. Shared, as a walk over a hundred thousand segments takes
  // milliseconds, and leases look them up meanwhile.
  mutable std::shared_mutex mutex;
  std::vector<std::shared_ptr<Segment>> by_id{nullptr};  // number 0 is nobody's
  std::deque<uint32_t> free;
  std::unordered_map<std::string, uint32_t> by_identity;
  Files open;
  std::unordered_map<uint32_t, Files::iterator> open_by_id;
};

SegmentTable::SegmentTable(std::shared_ptr<FileSystem> files, uint32_t open_files_max)
    : impl_(std::make_unique<Impl>()) {
  impl_->files = std::move(files);
  impl_->open_files_max = open_files_max;
}

SegmentTable::~SegmentTable() = default;

std::shared_ptr<Segment> SegmentTable::Add(const SegmentIdentity& identity, const std::string& directory,
                                           bool own) {
  std::string key = IdentityKey(identity.host_id, identity.namespace_id, identity.number);
  const std::lock_guard lock(impl_->mutex);
  if (const auto found = impl_->by_identity.find(key); found != impl_->by_identity.end()) {
    return impl_->by_id[found->second];
  }
  const bool fresh = impl_->free.size() < kNumbersAside && impl_->by_id.size() <= kSegmentsMax;
  if (!fresh && impl_->free.empty()) return nullptr;
  auto segment = std::make_shared<Segment>();
  if (fresh) {
    segment->id = static_cast<uint32_t>(impl_->by_id.size());
    impl_->by_id.push_back(segment);
  } else {
    segment->id = impl_->free.front();
    impl_->free.pop_front();
    impl_->by_id[segment->id] = segment;
  }
  segment->identity = identity;
  segment->directory = directory;
  segment->own = own;
  impl_->by_identity.emplace(std::move(key), segment->id);
  return segment;
}

std::shared_ptr<Segment> SegmentTable::Get(uint32_t id) const {
  const std::shared_lock lock(impl_->mutex);
  std::shared_ptr<Segment> segment = impl_->At(id);
  return segment != nullptr && !segment->retired ? segment : nullptr;
}

std::shared_ptr<Segment> SegmentTable::FindByIdentity(const uint8_t host_id[16],
                                                      const uint8_t namespace_id[16], uint64_t number) const {
  const std::string key = IdentityKey(host_id, namespace_id, number);
  const std::shared_lock lock(impl_->mutex);
  const auto found = impl_->by_identity.find(key);
  return found == impl_->by_identity.end() ? nullptr : impl_->by_id[found->second];
}

std::vector<std::shared_ptr<Segment>> SegmentTable::All() const {
  std::vector<std::shared_ptr<Segment>> all;
  const std::shared_lock lock(impl_->mutex);
  all.reserve(impl_->by_identity.size());
  for (const auto& segment : impl_->by_id) {
    if (segment != nullptr) all.push_back(segment);
  }
  return all;
}

std::string SegmentTable::Directory(const Segment& segment) const {
  const std::shared_lock lock(impl_->mutex);
  return segment.directory;
}

void SegmentTable::Retire(uint32_t id) {
  std::shared_ptr<ReadFile> closing;
  const std::lock_guard lock(impl_->mutex);  // let go of before `closing`
  const std::shared_ptr<Segment> segment = impl_->At(id);
  if (segment == nullptr) return;
  segment->retired = true;
  closing = impl_->TakeFile(id);
}

void SegmentTable::Forget(uint32_t id) {
  std::shared_ptr<ReadFile> closing;
  const std::lock_guard lock(impl_->mutex);
  const std::shared_ptr<Segment> segment = impl_->At(id);
  if (segment == nullptr) return;
  segment->retired = true;  // for those who still hold it
  closing = impl_->TakeFile(id);
  const SegmentIdentity& identity = segment->identity;
  impl_->by_identity.erase(IdentityKey(identity.host_id, identity.namespace_id, identity.number));
  impl_->by_id[id] = nullptr;
  impl_->free.push_back(id);
}

void SegmentTable::WillMove(uint32_t id, const std::string& to) {
  const std::lock_guard lock(impl_->mutex);
  if (const std::shared_ptr<Segment> segment = impl_->At(id)) segment->moves_to = to;
}

void SegmentTable::Move(uint32_t id, const std::string& directory, bool own) {
  const std::lock_guard lock(impl_->mutex);
  const std::shared_ptr<Segment> segment = impl_->At(id);
  if (segment == nullptr) return;
  segment->directory = directory;
  segment->moves_to.clear();
  segment->own = own;
}

IoError SegmentTable::OpenFile(const Segment& segment, std::shared_ptr<ReadFile>* file) {
  std::vector<std::string> looked;  // directories where it is not
  for (;;) {
    std::string directory;
    {
      const std::lock_guard lock(impl_->mutex);
      if (const auto found = impl_->open_by_id.find(segment.id);
          found != impl_->open_by_id.end() && impl_->At(segment.id).get() == &segment) {
        impl_->open.splice(impl_->open.begin(), impl_->open, found->second);
        *file = found->second->file;
        return {};
      }
      for (const std::string& place : {segment.directory, segment.moves_to}) {
        if (directory.empty() && std::ranges::find(looked, place) == looked.end()) directory = place;
      }
      if (directory.empty()) return {ENOENT};  // nor has it moved since
    }
    std::unique_ptr<ReadFile> opened;
    const std::string path = directory + "/" + SegmentName(segment.identity.number);
    const IoError error = impl_->files->OpenRead(path, &opened);
    if (error.not_found()) {
      looked.push_back(directory);
      continue;
    }
    if (!error.ok()) return error;
    *file = std::move(opened);
    break;
  }
  Impl::Files closing;
  const std::lock_guard lock(impl_->mutex);                                   // let go of before `closing`
  if (impl_->At(segment.id).get() != &segment || segment.retired) return {};  // this once, not for the cache
  if (const auto found = impl_->open_by_id.find(segment.id); found != impl_->open_by_id.end()) {
    closing.push_back({segment.id, std::move(*file)});
    *file = found->second->file;  // another thread was first; all share one
    return {};
  }
  impl_->open.push_front({segment.id, *file});
  impl_->open_by_id[segment.id] = impl_->open.begin();
  while (impl_->open.size() > impl_->open_files_max && impl_->open.size() > 1) {
    impl_->open_by_id.erase(impl_->open.back().id);
    closing.splice(closing.end(), impl_->open, std::prev(impl_->open.end()));
  }
  return {};
}

void SegmentTable::DropFile(uint32_t id) {
  std::shared_ptr<ReadFile> closing;
  const std::lock_guard lock(impl_->mutex);
  closing = impl_->TakeFile(id);
}

void SegmentTable::DropFiles() {
  Impl::Files closing;
  const std::lock_guard lock(impl_->mutex);
  impl_->open_by_id.clear();
  closing.swap(impl_->open);
}

}  // namespace tpu_sync_native
