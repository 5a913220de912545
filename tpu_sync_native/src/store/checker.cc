#include "store/checker.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "tpu_sync_native/meta_layout.h"

namespace tpu_sync_native {

Checker::Checker(Store& store, std::shared_ptr<Arena> arena) : store_(store), arena_(std::move(arena)) {}

void Checker::Start() {
  const std::lock_guard lock(life_);
  if (thread_.joinable() || store_.checksum_policy() == ChecksumPolicy::kOff) return;
  stop_ = false;
  thread_ = std::thread([this] { Run(); });
}

void Checker::Stop() {
  const std::lock_guard lock(life_);
  if (!thread_.joinable()) return;
  stop_ = true;
  store_.check_bell().Ring();
  thread_.join();
}

void Checker::Run() {
  pthread_setname_np(pthread_self(), "kvtier-check");
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
  std::vector<ChunkCheck> checks;
  while (!stop_) {
    const uint32_t rings = store_.check_bell().rings();
    if (!store_.TakeChecks(&checks)) {
      if (!stop_) store_.check_bell().Await(rings);
      continue;
    }
    for (ChunkCheck& check : checks) {
      if (stop_) return;  // what was taken and not answered is found by the next life
      check.found = ChecksumWord(Crc32c(0, arena_->data() + check.offset, check.bytes));
    }
    if (!checks.empty()) store_.EndChecks(checks);
  }
}

}  // namespace tpu_sync_native
