// io_uring without a library: the few calls that keep several pieces of one large read or write in flight.
//
// Each pool thread has a small ring of its own; nothing is shared, so nothing is locked. Where the kernel or
// a seccomp profile does not permit rings, there is none and plain system calls do the same work.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fs/io_plan.h"

namespace tpu_sync_native {

class Uring {
 public:
  static constexpr uint32_t kDepth = 8;  // pieces in flight
  static constexpr uint64_t kPieceBytes = 1 << 20;

  // The calling thread's own; null when rings are not permitted here. Asked for anew in a forked child.
  static Uring* OfThisThread();
  // "" when a ring can be made and serves, else why not, in words.
  static std::string WhyNot();

  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // Runs the pieces of `plan` (bounced ones with plain calls) and waits for all of them: when it returns
  // nothing is in flight, whatever happened. The first error; after it no further piece is begun.
  IoError Run(int fd, bool write, IoPlan& plan, uint64_t unit);

 private:
  Uring() = default;
  static std::unique_ptr<Uring> Make(std::string* why);
  std::string Open();  // "" or why not
  void Push(int fd, bool write, const IoPiece& piece, const IoPlan& plan, uint64_t tag);
  bool Pop(uint64_t* tag, int32_t* result);

  struct Rings;
  std::unique_ptr<Rings> rings_;
};

}  // namespace tpu_sync_native
