#include "ring/ring_map.h"

#include <fcntl.h>

#include <stdexcept>
#include <string>

#include "ring/futex.h"

namespace tpu_sync_native {
namespace {

void SizeAndSeal(int fd, uint64_t bytes, const char* what) {
  ResizeFile(fd, bytes, what);
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw std::invalid_argument(std::string(what) +
                                ": cannot be sealed against shrinking; it must be a fresh memfd " +
                                "made with MFD_ALLOW_SEALING");
  }
}

void Expect(const char* field, uint64_t value, uint64_t wanted) {
  if (value == wanted) return;
  throw std::invalid_argument("ring_fd: " + std::string(field) + " is " + std::to_string(value) +
                              ", this build needs " + std::to_string(wanted));
}

}  // namespace

RingMap RingMap::Create(int fd) {
  SizeAndSeal(fd, kRingBytes, "ring_fd");
  RingMap ring(Mapping(fd, kRingBytes, Mapping::Access::kReadWrite, "ring_fd"));
  RingHeader& header = ring.header();
  header.magic = kRingMagic;
  header.version = kRingVersion;
  header.header_bytes = kRingHeaderBytes;
  header.request_bytes = kRequestAreaBytes;
  header.reply_bytes = kReplyAreaBytes;
  return ring;
}

RingMap RingMap::Open(int fd) {
  RingMap ring(Mapping(fd, kRingBytes, Mapping::Access::kReadWrite, "ring_fd"));
  const RingHeader& header = ring.header();
  Expect("magic", header.magic, kRingMagic);
  Expect("version", header.version, kRingVersion);
  Expect("header_bytes", header.header_bytes, kRingHeaderBytes);
  Expect("request_bytes", header.request_bytes, kRequestAreaBytes);
  Expect("reply_bytes", header.reply_bytes, kReplyAreaBytes);
  return ring;
}

Doorbell Doorbell::Create(int fd) {
  SizeAndSeal(fd, kDoorbellBytes, "doorbell_fd");
  return Open(fd);
}

Doorbell Doorbell::Open(int fd) {
  return Doorbell(Mapping(fd, kDoorbellBytes, Mapping::Access::kReadWrite, "doorbell_fd"));
}

void Doorbell::Ring() const {
  word().fetch_add(1, std::memory_order_seq_cst);
  FutexWake(word());
}

}  // namespace tpu_sync_native
