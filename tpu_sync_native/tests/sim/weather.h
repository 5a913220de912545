// One daemon's way to the medium. Every call into it is a place where other threads go on; what comes of it
// is the weather's choice: errors, short writes and reads, a full disk, calls that take their time or hang
// until it clears up. A daemon that was killed reaches nothing any more, but for what the kernel had begun: a
// read may still land, and a part of an append.
#pragma once

#include <cerrno>
#include <memory>
#include <utility>

#include "base/futex.h"
#include "hooked_files.h"
#include "sim/schedule.h"

namespace tpu_sync_native::testing {

struct Weather {
  uint32_t errors_one_of = 0;  // one call of so many fails; 0: none
  uint32_t slow_one_of = 0;    // takes up to a second
  uint32_t hangs_one_of = 0;   // takes up to a minute
  bool down = false;           // all fail
  bool hangs = false;          // all hang until that changes
  bool full = false;           // nothing can be written
};

// Of one daemon's life.
class Door {
 public:
  // A read that was begun lands this long after the death of whoever began it, at most.
  static constexpr uint64_t kLateNsMax = 400 * kNsPerS;

  Door(Schedule& run, const Weather& weather) : run_(run), weather_(weather) {}

  void Shut() {
    shut_ = true;
    shut_ns_ = run_.now_ns();
  }

  FileVerdict Before(const FileCall& call) {
    const FileVerdict verdict = Decide(call);
    run_.Say("%p: op %x of %s, error %d", static_cast<void*>(this), call.op, call.path.c_str(),
             verdict.error.code);
    return verdict;
  }

 private:
  FileVerdict Decide(const FileCall& call) {
    run_.Yield();
    if (!shut_ && OneOf(weather_.slow_one_of)) run_.Sleep(run_.Draw(kNsPerS));
    if (!shut_ && OneOf(weather_.hangs_one_of)) run_.Sleep(run_.Draw(60 * kNsPerS));
    while (!shut_ && weather_.hangs) run_.Sleep(500 * kNsPerMs);
    if (shut_) return Late(call);
    if (weather_.down) return Failed(call, EIO);
    const bool writes = (call.op & kOpsWrite) != 0 && call.op != kOpRemove;
    if (weather_.full && writes) return Failed(call, ENOSPC);
    if (!OneOf(weather_.errors_one_of)) return {};
    constexpr int kWriteErrors[] = {EIO, ENOSPC, ETIMEDOUT, ESTALE};
    constexpr int kReadErrors[] = {EIO, IoError::kShort, ETIMEDOUT, ESTALE};
    const size_t which = run_.Draw(4);
    return Failed(call, writes ? kWriteErrors[which] : call.op == kOpRead ? kReadErrors[which] : EIO);
  }
  bool OneOf(uint32_t calls) { return calls != 0 && run_.Draw(calls) == 0; }

  FileVerdict Failed(const FileCall& call, int error) {
    FileVerdict verdict;
    verdict.error.code = error;
    if ((call.op == kOpAppend || call.op == kOpRead) && call.bytes != 0) {
      verdict.bytes_done = run_.Draw(call.bytes);
    }
    return verdict;
  }
  FileVerdict Late(const FileCall& call) {
    const bool soon = run_.now_ns() - shut_ns_ < kLateNsMax;
    if (call.op == kOpRead && soon && run_.Draw(2) == 0) return {};
    FileVerdict verdict = Failed(call, EIO);
    if (call.op == kOpRead || run_.Draw(2) == 0) verdict.bytes_done.reset();
    return verdict;
  }

  Schedule& run_;
  const Weather& weather_;
  bool shut_ = false;
  uint64_t shut_ns_ = 0;
};

inline std::shared_ptr<FileSystem> Through(std::shared_ptr<Door> door, std::shared_ptr<FileSystem> files) {
  FileHooks hooks;
  hooks.before = [door = std::move(door)](const FileCall& call) { return door->Before(call); };
  return std::make_shared<HookedFiles>(std::move(files), std::move(hooks));
}

}  // namespace tpu_sync_native::testing
