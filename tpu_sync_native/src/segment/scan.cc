#include "segment/scan.h"

#include <algorithm>
#include <memory>
#include <new>
#include <span>

#include "base/crc32c.h"
#include "fs/io_pool.h"
#include "segment/words.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kWindowBytes = 8 << 20;
// Records that lie further apart than this are not worth reading over when headers alone are wanted.
constexpr uint64_t kSkipBytes = 256 << 10;

struct FreeAligned {
  void operator()(uint8_t* data) const { ::operator delete(data, std::align_val_t{kStorageUnit}); }
};

// A part of the file in memory, moved forward in large aligned reads.
class Window {
 public:
  Window(ReadFile& file, uint64_t file_bytes)
      : file_(file),
        file_bytes_(file_bytes),
        data_(static_cast<uint8_t*>(
            ::operator new(std::min(kWindowBytes, file_bytes), std::align_val_t{kStorageUnit}))) {}

  // Where the bytes from `offset` on (a multiple of the unit, inside the file) lie; `available` of them,
  // `bytes` at least unless the window or the file ends first. When it must read, it reads `ahead_bytes`.
  IoError At(uint64_t offset, uint64_t bytes, uint64_t ahead_bytes, const uint8_t** at, uint64_t* available) {
    const uint64_t wanted = std::min({bytes, kWindowBytes, file_bytes_ - offset});
    if (offset < begin_ || offset + wanted > end_) {
      const uint64_t read_bytes =
          std::min({std::max(wanted, ahead_bytes), kWindowBytes, file_bytes_ - offset});
      begin_ = end_ = 0;
      const IoVec part{data_.get(), RoundToUnit(read_bytes)};
      IoPool::Progress();
      const IoError error = file_.Read(offset, {&part, 1});
      if (!error.ok()) return error;
      begin_ = offset;
      end_ = offset + read_bytes;
    }
    *at = data_.get() + (offset - begin_);
    *available = end_ - offset;
    return {};
  }

 private:
  ReadFile& file_;
  const uint64_t file_bytes_;  // whole units
  std::unique_ptr<uint8_t, FreeAligned> data_;
  uint64_t begin_ = 0, end_ = 0;
};

class Scanner {
 public:
  Scanner(ReadFile& file, uint64_t units_bytes, bool check_payloads, const Sealer* sealer, ScanResult& result)
      : window_(file, units_bytes),
        file_bytes_(units_bytes),
        check_payloads_(check_payloads),
        sealer_(sealer),
        result_(result) {}

  // False: the segment's header is not one; nothing below makes sense.
  IoError ReadSegmentHeader(bool* ok) {
    const uint8_t* at = nullptr;
    uint64_t available = 0;
    if (file_bytes_ >= kStorageUnit) {
      const IoError error = window_.At(0, kStorageUnit, kStorageUnit, &at, &available);
      if (!error.ok()) return error;
    }
    result_.stopped = DecodeSegmentHeader({at, available}, &result_.identity);
    *ok = result_.stopped.empty();
    if (!*ok) return {};
    const uint64_t stride = kStorageUnit + RoundToUnit(result_.identity.chunk_bytes);
    ahead_bytes_ = check_payloads_ || stride <= kSkipBytes ? kWindowBytes : kStorageUnit;
    return {};
  }

  // One record at `offset`: `why` is "" or what is wrong with it, `next` where to go on, 0 when it does not
  // say.
  IoError ReadRecord(uint64_t offset, IndexEntry* entry, std::string* why, uint64_t* next) {
    *entry = IndexEntry{};
    entry->offset = offset;
    *next = 0;
    const uint8_t* at = nullptr;
    uint64_t available = 0;
    IoError error = window_.At(offset, kStorageUnit, ahead_bytes_, &at, &available);
    if (!error.ok()) return error;
    RecordHeader header;
    *why = CheckRecordHeader({at, kStorageUnit}, result_.identity, offset, &header);
    if (!why->empty()) return {};
    *entry = MakeIndexEntry(offset, KeyOf(header), static_cast<Codec>(header.codec), header.stored_bytes,
                            header.payload_crc);
    const uint64_t end = offset + kStorageUnit + RoundToUnit(header.stored_bytes);
    *next = std::min(end, file_bytes_);
    if (end > file_bytes_) {
      *why = "record ends at " + std::to_string(end) + ", behind the end of the file";
      return {};
    }
    if (sealer_ != nullptr && !sealer_->HeaderHolds(header)) {
      *why = header.seal == 0 ? "it is not sealed" : "its seal does not hold: another key, or a forgery";
      return {};
    }
    if (!check_payloads_) return {};
    uint32_t crc = 0;
    std::string sealed;
    error =
        PayloadCrc(offset + kStorageUnit, header.stored_bytes, &crc, sealer_ == nullptr ? nullptr : &sealed);
    if (error.ok() && crc != header.payload_crc) {
      *why = Wrong("checksum of the payload", Hex(crc), Hex(header.payload_crc));
    } else if (error.ok() && sealer_ != nullptr &&
               !sealer_->OpenPayload(header, reinterpret_cast<uint8_t*>(sealed.data()))) {
      *why = "the seal of its payload does not hold";
    }
    return error;
  }

  // The next valid header from `offset` on; the file's end when there is none. Headers carry their own
  // offset, so payload bytes do not pass for one.
  IoError FindRecord(uint64_t* offset) {
    for (; *offset < file_bytes_; *offset += kStorageUnit) {
      const uint8_t* at = nullptr;
      uint64_t available = 0;
      const IoError error = window_.At(*offset, kStorageUnit, kWindowBytes, &at, &available);
      if (!error.ok()) return error;
      RecordHeader header;
      if (CheckRecordHeader({at, kStorageUnit}, result_.identity, *offset, &header).empty()) return {};
    }
    return {};
  }

 private:
  // bytes_read, if given: what it read, for the seal.
  IoError PayloadCrc(uint64_t offset, uint64_t bytes, uint32_t* crc, std::string* bytes_read) {
    while (bytes > 0) {
      const uint8_t* at = nullptr;
      uint64_t available = 0;
      const IoError error = window_.At(offset, std::min(bytes, kStorageUnit), kWindowBytes, &at, &available);
      if (!error.ok()) return error;
      const uint64_t part = std::min(bytes, available);
      *crc = Crc32c(*crc, at, part);
      if (bytes_read != nullptr) bytes_read->append(reinterpret_cast<const char*>(at), part);
      offset += part;
      bytes -= part;
    }
    return {};
  }

  Window window_;
  const uint64_t file_bytes_;
  const bool check_payloads_;
  const Sealer* const sealer_;
  ScanResult& result_;
  uint64_t ahead_bytes_ = kStorageUnit;
};

}  // namespace

IoError ScanSegment(FileSystem& files, const std::string& path, bool check_payloads, ScanResult* result,
                    const RecordFound& found) {
  std::unique_ptr<ReadFile> file;
  const IoError error = files.OpenRead(path, &file);
  return error.ok() ? ScanSegment(*file, check_payloads, result, found) : error;
}

IoError ScanSegment(ReadFile& file, bool check_payloads, ScanResult* result, const RecordFound& found,
                    const Sealer* sealer) {
  *result = ScanResult{};
  IoError error = file.Size(&result->file_bytes);
  if (!error.ok()) return error;
  // Less than a unit at the end is no record.
  const uint64_t units_bytes =
      std::min(result->file_bytes, kStoredSegmentBytesMax) / kStorageUnit * kStorageUnit;
  Scanner scanner(file, units_bytes, check_payloads, sealer, *result);
  bool ok = false;
  error = scanner.ReadSegmentHeader(&ok);
  if (!error.ok() || !ok) return error;

  const auto stop = [result](uint64_t offset, const std::string& why) {
    if (!result->stopped.empty()) return;
    result->stopped = "at " + std::to_string(offset) + ": " + why;
    result->valid_bytes = offset;
  };
  uint64_t offset = kStorageUnit;
  while (offset < units_bytes) {
    IndexEntry entry;
    std::string why;
    uint64_t next = 0;
    error = scanner.ReadRecord(offset, &entry, &why, &next);
    if (!error.ok()) return error;
    if (why.empty()) {
      result->entries.push_back(entry);
    } else {
      stop(offset, why);
      if (!found) return {};
    }
    if (found) found(entry, why);
    if (next == 0) {
      next = offset + kStorageUnit;
      error = scanner.FindRecord(&next);
      if (!error.ok()) return error;
    }
    offset = next;
  }
  if (units_bytes != result->file_bytes) {
    stop(units_bytes, std::to_string(result->file_bytes - units_bytes) + " bytes that are no record");
  }
  if (result->stopped.empty()) result->valid_bytes = units_bytes;
  return {};
}

}  // namespace tpu_sync_native
