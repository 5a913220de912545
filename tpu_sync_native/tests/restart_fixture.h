// Two lives of one arena: a copy of the files as a killed daemon left them, and a store that takes them over.
#pragma once

#include <sys/sendfile.h>

#include <functional>
#include <map>

#include "index/probe.h"
#include "store_fixture.h"

namespace tpu_sync_native::testing {

// The file of another descriptor, as it stands now, holes and all.
inline void CopyFile(int from, int to) {
  const uint64_t bytes = FileBytes(from, "from");
  ResizeFile(to, bytes, "to");
  const Mapping source(from, bytes, Mapping::Access::kRead, "from");
  off_t begin = 0;
  while ((begin = lseek(from, begin, SEEK_DATA)) >= 0) {
    const off_t end = lseek(from, begin, SEEK_HOLE);
    for (off_t at = begin; at < end;) {
      const ssize_t wrote = pwrite(to, source.data() + at, static_cast<size_t>(end - at), at);
      CHECK(wrote > 0);
      at += wrote;
    }
    begin = end;
  }
}

inline StoreOptions OptionsOf(const Shape& shape, uint64_t boot_id, bool keep) {
  StoreOptions options;
  options.boot_id = boot_id;
  options.policy = shape.policy;
  options.checksum = shape.checksum;
  options.slots_max = static_cast<uint32_t>(shape.slabs * shape.slab_bytes / 4096);
  options.keep = keep;
  return options;
}

// The next daemon, on copies of the files of `before`; `harm` is done to the copies first.
struct NextLife {
  explicit NextLife(const StoreFixture& before, const Shape& shape = {},
                    const std::function<void(MetaView&)>& harm = {})
      : NextLife(before.data_file, before.meta_file, shape, harm) {}
  NextLife(const MemFile& data_before, const MemFile& meta_before, const Shape& shape = {},
           const std::function<void(MetaView&)>& harm = {}) {
    CopyFile(data_before.fd(), data_file.fd());
    CopyFile(meta_before.fd(), meta_file.fd());
    const uint64_t bytes = FileBytes(meta_file.fd(), "meta");
    meta = Mapping(meta_file.fd(), bytes, Mapping::Access::kReadWrite, "meta");
    if (harm) {
      MetaView view(meta.data(), meta.bytes());
      harm(view);
    }
    arena = std::make_shared<Arena>(data_file.fd(), shape.slabs * shape.slab_bytes, shape.slab_bytes);
    const StoreOptions options = OptionsOf(shape, 8, /*keep=*/true);
    CHECK(Store::WhyNotKept(data_file.fd(), arena->bytes(), arena->slab_bytes(), meta_file.fd(), options) ==
          "");
    store = std::make_unique<Store>(arena, meta_file.fd(), options);
    reader = std::make_unique<IndexReader>(meta.data(), meta.bytes());
  }

  uint64_t Stat(std::string_view name) const {
    for (const Counter& counter : store->Stats()) {
      if (counter.name == name) return counter.value;
    }
    Fail(__FILE__, __LINE__, "no such counter:", std::string(name));
  }
  bool Has(uint64_t number, uint32_t space) const {
    return store->LongestPrefix(space, Range(number, 1).batch()) == 1;
  }
  void CheckSound() const {
    const std::vector<std::string> findings = store->Audit();
    for (const std::string& finding : findings) std::fprintf(stderr, "audit: %s\n", finding.c_str());
    CHECK(findings.empty());
  }

  MemFile data_file{"data"};
  MemFile meta_file{"meta"};
  Mapping meta;
  std::shared_ptr<Arena> arena;
  std::unique_ptr<Store> store;
  std::unique_ptr<IndexReader> reader;
};

}  // namespace tpu_sync_native::testing
