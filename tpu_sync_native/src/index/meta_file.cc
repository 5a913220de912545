#include "index/meta_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace tpu_sync_native {
namespace {

void FillRandom(uint8_t* bytes, size_t count) {
  if (getrandom(bytes, count, 0) != static_cast<ssize_t>(count)) {
    throw std::system_error(errno, std::generic_category(), "no random bytes");
  }
}

bool ReadAt(int fd, uint64_t offset, void* bytes, size_t count) {
  auto* to = static_cast<uint8_t*>(bytes);
  while (count > 0) {
    const ssize_t got = pread(fd, to, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<size_t>(got);
  }
  return true;
}

std::string Differs(const char* field, uint64_t theirs, uint64_t ours) {
  return std::string(field) + " is " + std::to_string(theirs) + ", wanted " + std::to_string(ours);
}

std::string Beyond(uint64_t value, uint64_t most) {
  return "is " + std::to_string(value) + ", beyond " + std::to_string(most);
}

// Numbers go on from these for as long as the arena lives: they were not counted up to here.
constexpr uint64_t kNumberMax = uint64_t{1} << 62;
constexpr uint32_t kEpochMax = 1u << 31;

// No row is of a number that was not given out yet: it would be given out once more.
template <typename Row>
std::string WhyRowsNotKept(int fd, const char* name, uint64_t offset, uint32_t count, uint64_t last) {
  const std::string what(name);
  if (last > kNumberMax) return "last_" + what + " " + Beyond(last, kNumberMax);
  std::vector<uint8_t> table(uint64_t{count} * sizeof(Row));
  if (!ReadAt(fd, offset, table.data(), table.size())) return "the rows of " + what + "s cannot be read";
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t number = 0;  // its first word
    std::memcpy(&number, table.data() + uint64_t{i} * sizeof(Row), sizeof(number));
    if (number > last) return what + " row " + std::to_string(i) + " " + Beyond(number, last);
  }
  return "";
}

// Namespaces stand at the front, each id once; an unused record ends them.
std::string WhyNamespacesNotKept(int fd, const MetaGeometry& geometry) {
  const uint32_t count = geometry.namespaces_max;
  // As bytes: a record's counter makes it no plain value.
  std::vector<uint8_t> table(uint64_t{count} * sizeof(NamespaceRecord));
  if (!ReadAt(fd, geometry.namespaces_offset(), table.data(), table.size()))
    return "the namespaces cannot be read";
  std::set<std::string> ids;
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t* record = table.data() + uint64_t{i} * sizeof(NamespaceRecord);
    uint32_t epoch = 0;
    uint64_t chunk_bytes = 0;
    std::memcpy(&epoch, record, sizeof(epoch));
    std::memcpy(&chunk_bytes, record + offsetof(NamespaceRecord, chunk_bytes), sizeof(chunk_bytes));
    if (epoch == 0) break;
    const std::string name = "namespace " + std::to_string(i);
    uint32_t clearing_to = 0;
    std::memcpy(&clearing_to, record + offsetof(NamespaceRecord, clearing_to), sizeof(clearing_to));
    if (epoch > kEpochMax) return name + ": epoch " + Beyond(epoch, kEpochMax);
    if (clearing_to > kEpochMax) return name + ": clearing_to " + Beyond(clearing_to, kEpochMax);
    if (chunk_bytes == 0 || chunk_bytes > geometry.slab_bytes) {
      return name + ": chunk_bytes is " + std::to_string(chunk_bytes) + ", outside 1 to " +
             std::to_string(geometry.slab_bytes);
    }
    const auto* id = reinterpret_cast<const char*>(record + offsetof(NamespaceRecord, id));
    if (!ids.emplace(id, sizeof(NamespaceRecord::id)).second) return name + " has the id of another one";
  }
  return "";
}

}  // namespace

int AllocateFile(int fd, uint64_t offset, uint64_t bytes) {
  int error = 0;
  do {
    error = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error == EOPNOTSUPP ? 0 : error;
}

Mapping MakeMetaFile(int fd, const MetaGeometry& geometry, uint64_t boot_id, const HostBoot& host) {
  ResizeFile(fd, 0, "the metadata");
  ResizeFile(fd, geometry.meta_bytes(), "the metadata");
  if (const int error = AllocateFile(fd, 0, geometry.slots_offset()); error != 0) {
    throw std::system_error(
        error, std::generic_category(),
        "no room for the metadata: " + std::to_string(geometry.slots_offset()) + " bytes");
  }
  Mapping mapping(fd, geometry.meta_bytes(), Mapping::Access::kReadWrite, "the metadata");
  auto* header = reinterpret_cast<MetaHeader*>(mapping.data());
  header->version = kMetaVersion;
  header->namespaces_max = geometry.namespaces_max;
  header->data_bytes = geometry.data_bytes;
  header->meta_bytes = geometry.meta_bytes();
  header->slab_bytes = geometry.slab_bytes;
  header->slots_max = geometry.slots_max;
  header->bucket_count = geometry.bucket_count;
  header->namespaces_offset = geometry.namespaces_offset();
  header->buckets_offset = geometry.buckets_offset();
  header->slots_offset = geometry.slots_offset();
  header->key_tails_offset = geometry.key_tails_offset();
  header->checksums_offset = geometry.checksums_offset();
  header->sessions_offset = geometry.sessions_offset();
  header->leases_offset = geometry.leases_offset();
  header->sessions_max = kSessionRowsMax;
  header->leases_max = geometry.leases_max();
  header->boot_id = boot_id;
  std::memcpy(header->host_boot, host.bytes, sizeof(host.bytes));
  FillRandom(header->arena_id, sizeof(header->arena_id));
  __atomic_store_n(&header->magic, kMetaMagic, __ATOMIC_RELEASE);
  return mapping;
}

std::string WhyNotKept(int fd, const MetaGeometry& geometry, const HostBoot& host) {
  const uint64_t bytes = FileBytes(fd, "the metadata");
  MetaHeader header;
  if (bytes < sizeof(header) || !ReadAt(fd, 0, static_cast<void*>(&header), sizeof(header)))
    return Differs("the metadata's size", bytes, geometry.meta_bytes());
  if (header.magic != kMetaMagic) return Differs("magic", header.magic, kMetaMagic);
  const struct {
    const char* field;
    uint64_t theirs, ours;
  } fields[] = {
      {"version", header.version, kMetaVersion},
      {"data_bytes", header.data_bytes, geometry.data_bytes},
      {"slab_bytes", header.slab_bytes, geometry.slab_bytes},
      {"slots_max", header.slots_max, geometry.slots_max},
      {"bucket_count", header.bucket_count, geometry.bucket_count},
      {"namespaces_max", header.namespaces_max, geometry.namespaces_max},
      {"sessions_max", header.sessions_max, kSessionRowsMax},
      {"leases_max", header.leases_max, geometry.leases_max()},
      {"namespaces_offset", header.namespaces_offset, geometry.namespaces_offset()},
      {"sessions_offset", header.sessions_offset, geometry.sessions_offset()},
      {"leases_offset", header.leases_offset, geometry.leases_offset()},
      {"buckets_offset", header.buckets_offset, geometry.buckets_offset()},
      {"slots_offset", header.slots_offset, geometry.slots_offset()},
      {"key_tails_offset", header.key_tails_offset, geometry.key_tails_offset()},
      {"checksums_offset", header.checksums_offset, geometry.checksums_offset()},
      {"meta_bytes", header.meta_bytes, geometry.meta_bytes()},
      {"the metadata's size", bytes, geometry.meta_bytes()},
  };
  for (const auto& [field, theirs, ours] : fields) {
    if (theirs != ours) return Differs(field, theirs, ours);
  }
  if (std::memcmp(header.host_boot, host.bytes, sizeof(host.bytes)) != 0)
    return "host_boot is another one: the host has been started anew";
  std::string why = WhyRowsNotKept<SessionRow>(fd, "session", geometry.sessions_offset(), kSessionRowsMax,
                                               header.last_session.load());
  if (why.empty()) {
    why = WhyRowsNotKept<WriteLeaseRow>(fd, "lease", geometry.leases_offset(), geometry.leases_max(),
                                        header.last_lease.load());
  }
  if (!why.empty()) return why;
  return WhyNamespacesNotKept(fd, geometry);
}

Mapping KeepMetaFile(int fd, const MetaGeometry& geometry, uint64_t boot_id, const HostBoot& host) {
  if (const std::string reason = WhyNotKept(fd, geometry, host); !reason.empty())
    throw std::invalid_argument("the arena cannot be kept: " + reason);
  // What was allocated once stays so; a hole that somebody made in it is filled, or said.
  if (const int error = AllocateFile(fd, 0, geometry.slots_offset()); error != 0)
    throw std::system_error(error, std::generic_category(), "no room for the metadata");
  Mapping mapping(fd, geometry.meta_bytes(), Mapping::Access::kReadWrite, "the metadata");
  auto* header = reinterpret_cast<MetaHeader*>(mapping.data());
  __atomic_store_n(&header->boot_id, boot_id, __ATOMIC_SEQ_CST);
  ++header->restarts;
  return mapping;
}

}  // namespace tpu_sync_native
