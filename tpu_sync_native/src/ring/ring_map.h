// A ring file mapped into this process: made by the server, opened by the client.
#pragma once

#include <cstdint>

#include "base/mapping.h"
#include "tpu_sync_native/ring_layout.h"

namespace tpu_sync_native {

class RingMap {
 public:
  // Server: sizes the memfd, seals it against shrinking, writes the header. Throws std::invalid_argument when
  // `fd` cannot be sealed (it must be a memfd made with MFD_ALLOW_SEALING), std::system_error otherwise.
  static RingMap Create(int fd);
  // Client: maps and checks. Throws std::invalid_argument naming the field that does not fit.
  static RingMap Open(int fd);

  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(map_.data()); }
  std::byte* requests() const { return map_.data() + kRingHeaderBytes; }
  std::byte* reply() const { return map_.data() + kRingHeaderBytes + kRequestAreaBytes; }

 private:
  explicit RingMap(Mapping map) : map_(std::move(map)) {}
  Mapping map_;
};

// The doorbell all sessions of a daemon share: one page, whose first word is the futex the server sleeps on.
class Doorbell {
 public:
  static Doorbell Create(int fd);  // server: sizes and seals; throws as RingMap::Create
  static Doorbell Open(int fd);    // client
  std::atomic<uint32_t>& word() const { return *reinterpret_cast<std::atomic<uint32_t>*>(map_.data()); }
  void Ring() const;

 private:
  explicit Doorbell(Mapping map) : map_(std::move(map)) {}
  Mapping map_;
};

}  // namespace tpu_sync_native
