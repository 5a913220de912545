#include "store/arena_check.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/crc32c.h"
#include "base/mapping.h"
#include "index/meta_view.h"
#include "index/probe.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kReadBytes = 1 << 20;

// Reads, and maps nothing: a hole gets no memory, and a file that shrinks is an answer like any other.
class PayloadReader {
 public:
  explicit PayloadReader(int fd) : fd_(fd), buffer_(kReadBytes) {}

  // False: not all of it is there.
  bool Checksum(uint64_t offset, uint64_t bytes, uint32_t* word) {
    uint32_t crc = 0;
    while (bytes > 0) {
      const size_t wanted = std::min<uint64_t>(bytes, buffer_.size());
      const ssize_t got = pread(fd_, buffer_.data(), wanted, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      crc = Crc32c(crc, buffer_.data(), static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
      bytes -= static_cast<uint64_t>(got);
    }
    *word = ChecksumWord(crc);
    return true;
  }

 private:
  const int fd_;
  std::vector<uint8_t> buffer_;
};

class ArenaChecker {
 public:
  ArenaChecker(int data_fd, int meta_fd)
      : meta_fd_(meta_fd),
        mapping_(meta_fd, FileBytes(meta_fd, "the metadata"), Mapping::Access::kRead, "the metadata"),
        view_(mapping_.data(), mapping_.bytes()),
        payload_(data_fd) {}

  ArenaReport Run() {
    const auto table =
        static_cast<uint64_t>(reinterpret_cast<const std::byte*>(&view_.slot(0)) - mapping_.data());
    const uint64_t end = table + uint64_t{view_.slots_max()} * sizeof(SlotRecord);
    // Only what was written: reading a hole through the mapping would give it memory.
    for (uint64_t at = table; at < end;) {
      const off_t data = lseek(meta_fd_, static_cast<off_t>(at), SEEK_DATA);
      if (data < 0 || static_cast<uint64_t>(data) >= end) break;
      const off_t hole = lseek(meta_fd_, data, SEEK_HOLE);
      const uint64_t until = hole < 0 ? end : std::min(end, static_cast<uint64_t>(hole));
      const uint64_t first = (static_cast<uint64_t>(data) - table) / sizeof(SlotRecord);
      const uint64_t last = (until - table) / sizeof(SlotRecord);
      for (uint64_t slot = first; slot < last; ++slot) Check(static_cast<uint32_t>(slot));
      at = until;
    }
    return std::move(report_);
  }

 private:
  struct Seen {
    uint32_t seq, word;
    uint64_t place, owner;
    bool operator==(const Seen&) const = default;
  };

  Seen Look(uint32_t slot) const {
    constexpr auto kAcquire = std::memory_order_acquire;
    const SlotRecord& record = view_.slot(slot);
    Seen seen{};
    seen.seq = record.seq.load(kAcquire);
    seen.place = record.place.load(kAcquire);
    seen.owner = record.owner.load(kAcquire);
    seen.word = view_.checksum(slot);
    return seen;
  }

  void Check(uint32_t slot) {
    const Seen seen = Look(slot);
    const auto ns = static_cast<uint32_t>(seen.owner);
    if ((seen.seq & 1) != 0 || PlaceState(seen.place) != SlotState::kCommitted) return;
    if (ns >= view_.namespaces_max()) return;
    const NamespaceRecord& space = view_.ns(ns);
    if (space.epoch.load(std::memory_order_acquire) != static_cast<uint32_t>(seen.owner >> 32)) return;
    ++report_.chunks;
    if (seen.word == 0) {
      ++report_.unchecked;
      return;
    }
    const uint64_t offset = PlaceOffset(seen.place);
    const uint64_t bytes = space.chunk_bytes;
    uint32_t word = 0;
    const bool inside = bytes <= view_.data_bytes() && offset <= view_.data_bytes() - bytes;
    const bool whole = inside && payload_.Checksum(offset, bytes, &word);
    if (inside) report_.bytes += bytes;
    if (!(Look(slot) == seen)) {
      ++report_.changed;
      return;
    }
    ++report_.checked;
    if (whole && word == seen.word) return;
    const std::string id(reinterpret_cast<const char*>(space.id), sizeof(space.id));
    report_.damaged.push_back({id, KeyBytes(slot, PlaceKeyBytes(seen.place)), offset});
  }

  std::string KeyBytes(uint32_t slot, uint32_t bytes) const {
    uint64_t words[8] = {};
    for (uint32_t i = 0; i < 5; ++i) words[i] = view_.slot(slot).key[i].load(std::memory_order_relaxed);
    if (bytes > kKeyBytesInline) {
      for (uint32_t i = 0; i < 3; ++i)
        words[5 + i] = view_.key_tail(slot).key[i].load(std::memory_order_relaxed);
    }
    return {reinterpret_cast<const char*>(words), std::min(bytes, kKeyBytesMax)};
  }

  const int meta_fd_;
  const Mapping mapping_;
  const MetaView view_;
  PayloadReader payload_;
  ArenaReport report_;
};

}  // namespace

ArenaReport CheckArena(int data_fd, int meta_fd) { return ArenaChecker(data_fd, meta_fd).Run(); }

}  // namespace tpu_sync_native
