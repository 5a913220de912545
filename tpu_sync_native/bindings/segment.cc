// The storage format for tools and tests: segments, indexes and leases as Python values.
#include <fcntl.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

#include "base/crc32c.h"
#include "bindings.h"
#include "gil.h"
#include "segment/payload_codec.h"
#include "segment/scan.h"
#include "segment/segment_codec.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

// Whole indexes are read into memory: of a segment of the largest size with the smallest chunks, 12 GiB. No
// tool is to die of a forged one.
constexpr uint64_t kWholeFileBytesMax = 1 << 30;

using PathOrFd = std::variant<int, std::string>;

[[noreturn]] void Raise(int code, const std::string& what) {
  throw std::system_error(code, std::generic_category(), what);
}

// A regular file, read from the medium and not from what the page cache still has of it.
class PlainFile : public ReadFile {
 public:
  explicit PlainFile(const PathOrFd& file) {
    if (const auto* path = std::get_if<std::string>(&file)) {
      // Not blocked by a pipe, not led elsewhere by a link.
      fd_ = open(path->c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
      name_ = *path;
    } else {
      fd_ = fcntl(std::get<int>(file), F_DUPFD_CLOEXEC, 0);
      name_ = "descriptor " + std::to_string(std::get<int>(file));
    }
    if (fd_ < 0) Raise(errno, name_);
    struct stat status;
    if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
      close(fd_);
      Raise(EINVAL, name_ + " is not a regular file");
    }
    posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;
  ~PlainFile() override {
    posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    close(fd_);
  }

  IoError Read(uint64_t offset, std::span<const IoVec> parts) override {
    for (const IoVec& part : parts) {
      auto* at = static_cast<uint8_t*>(part.data);
      for (uint64_t left = part.bytes; left > 0;) {
        const ssize_t done = pread(fd_, at, left, static_cast<off_t>(offset));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return {errno};
        if (done == 0) return {IoError::kShort};
        at += done;
        offset += static_cast<uint64_t>(done);
        left -= static_cast<uint64_t>(done);
      }
    }
    return {};
  }

  IoError Size(uint64_t* bytes) override {
    struct stat status;
    if (fstat(fd_, &status) != 0) return {errno};
    *bytes = static_cast<uint64_t>(status.st_size);
    return {};
  }

  std::string ReadWhole() {
    uint64_t bytes = 0;
    IoError error = Size(&bytes);
    if (error.ok() && bytes > kWholeFileBytesMax) error = {EFBIG};
    std::string data(error.ok() ? bytes : 0, '\0');
    const IoVec part{data.data(), data.size()};
    if (error.ok()) error = Read(0, {&part, 1});
    Check(error);
    return data;
  }

  void Check(const IoError& error) const {
    if (!error.ok()) Raise(error.code == IoError::kShort ? EIO : error.code, name_);
  }

 private:
  int fd_;
  std::string name_;
};

py::bytes Id(const uint8_t id[16]) { return {reinterpret_cast<const char*>(id), 16}; }

py::dict Describe(const SegmentIdentity& identity) {
  py::dict row;
  row["namespace"] = Id(identity.namespace_id);
  row["host"] = Id(identity.host_id);
  row["number"] = identity.number;
  row["epoch"] = identity.epoch;
  row["chunk_bytes"] = identity.chunk_bytes;
  return row;
}

py::dict Describe(const IndexEntry& entry) {
  py::dict row;
  row["key"] = py::bytes(KeyOf(entry).data(), KeyOf(entry).size());
  row["offset"] = entry.offset;
  row["stored_bytes"] = uint64_t{entry.stored_units} * kStorageUnit;
  row["codec"] = CodecName(static_cast<Codec>(entry.codec));
  row["payload_crc"] = entry.payload_crc;
  return row;
}

py::dict PyScanSegment(const PathOrFd& source, bool check_payloads, const py::bytes& seal_key) {
  std::shared_ptr<const Sealer> sealer;
  if (const std::string key = seal_key; !key.empty()) {
    std::string why;
    sealer = Sealer::Make(key, Seal::kMac, &why);  // it reads the other kind too
    if (sealer == nullptr) throw py::value_error("seal_key: " + why);
  }
  struct Found {
    IndexEntry entry;
    std::string why;
  };
  std::vector<Found> found;
  ScanResult result;
  WithoutGil([&] {
    PlainFile file(source);
    file.Check(ScanSegment(
        file, check_payloads, &result,
        [&](const IndexEntry& entry, const std::string& why) { found.push_back({entry, why}); },
        sealer.get()));
  });
  py::dict described = Describe(result.identity);
  described["file_bytes"] = result.file_bytes;
  described["valid_bytes"] = result.valid_bytes;
  described["stopped"] = result.stopped;
  py::list records;
  for (const Found& record : found) {
    py::dict row = Describe(record.entry);
    row["why"] = record.why;
    records.append(std::move(row));
  }
  described["records"] = std::move(records);
  return described;
}

py::dict PyReadIndex(const PathOrFd& source) {
  SegmentIdentity identity;
  uint64_t segment_bytes = 0;
  bool sealed = false;
  std::vector<IndexEntry> entries;
  const std::string wrong = WithoutGil([&] {
    const std::string data = PlainFile(source).ReadWhole();
    return DecodeIndex(data, &identity, &segment_bytes, &sealed, &entries);
  });
  if (!wrong.empty()) throw py::value_error(wrong);
  py::dict described = Describe(identity);
  described["segment_bytes"] = segment_bytes;
  described["sealed"] = sealed;
  py::list records;
  for (const IndexEntry& entry : entries) records.append(Describe(entry));
  described["records"] = std::move(records);
  return described;
}

py::dict PyReadLease(const PathOrFd& source) {
  LeaseFile lease{};
  const std::string wrong = WithoutGil([&] { return DecodeLease(PlainFile(source).ReadWhole(), &lease); });
  if (!wrong.empty()) throw py::value_error(wrong);
  py::dict row;
  row["host"] = Id(lease.host_id);
  row["boot_id"] = lease.boot_id;
  row["counter"] = lease.counter;
  row["bytes"] = lease.bytes;
  row["changes"] = lease.changes;
  row["leaving"] = lease.leaving != 0;
  return row;
}

Codec CodecOf(const std::string& name) {
  Codec codec;
  if (ParseCodec(name, &codec)) return codec;
  throw py::value_error("codec is '" + name + "'; raw, lz4, lz4-shuffle2 and lz4-shuffle4 are known");
}

py::object PyEncodePayload(const std::string& name, const py::bytes& data) {
  const Codec codec = CodecOf(name);
  const std::string_view source = data;
  std::string target(source.size(), '\0');
  const uint64_t bytes = WithoutGil([&] {
    return EncodePayload(codec, reinterpret_cast<const uint8_t*>(source.data()), source.size(),
                         reinterpret_cast<uint8_t*>(target.data()));
  });
  if (bytes == 0) return py::none();
  return py::bytes(target.data(), bytes);
}

py::bytes PyDecodePayload(const std::string& name, const py::bytes& data, uint64_t chunk_bytes) {
  const Codec codec = CodecOf(name);
  const std::string_view source = data;
  if (chunk_bytes > kStoredChunkBytesMax) throw py::value_error("chunk_bytes is larger than a chunk can be");
  std::string target(chunk_bytes, '\0');
  const bool ok = WithoutGil([&] {
    return DecodePayload(codec, reinterpret_cast<const uint8_t*>(source.data()), source.size(),
                         reinterpret_cast<uint8_t*>(target.data()), chunk_bytes);
  });
  if (!ok) throw py::value_error("data does not decode to " + std::to_string(chunk_bytes) + " bytes");
  return target;
}

uint32_t PyCrc32c(const py::bytes& data, uint32_t crc) {
  const std::string_view source = data;
  return WithoutGil([&] { return Crc32c(crc, source.data(), source.size()); });
}

}  // namespace

void BindSegment(py::module_& module) {
  module.def("scan_segment", &PyScanSegment, py::arg("file"), py::arg("check_payloads"),
             py::arg("seal_key") = py::bytes());
  module.def("read_index", &PyReadIndex, py::arg("file"));
  module.def("read_lease", &PyReadLease, py::arg("file"));
  module.def("crc32c", &PyCrc32c, py::arg("data"), py::arg("crc") = 0);
  module.def("crc32c_kernel", &Crc32cKernel);
  module.def(
      "codec_unavailable", [](const std::string& codec) { return CodecUnavailable(CodecOf(codec)); },
      py::arg("codec"));
  module.def("encode_payload", &PyEncodePayload, py::arg("codec"), py::arg("data"));
  module.def("decode_payload", &PyDecodePayload, py::arg("codec"), py::arg("data"), py::arg("chunk_bytes"));
}

}  // namespace tpu_sync_native
