#include "storage/upkeep.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/futex.h"
#include "storage/namespace_root.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kTickMs = 50;
constexpr uint64_t kRetryMs = 250;        // of what did not go well and is waited for
constexpr uint32_t kOpenFailuresMax = 8;  // an opening that failed so often is tried again this much later

uint64_t NowMs() { return SteadyNs() / kNsPerMs; }

}  // namespace

Upkeep::Upkeep(std::shared_ptr<StorageParts> parts, Store& store) : parts_(std::move(parts)), store_(store) {}

Upkeep::~Upkeep() { Stop(); }

void Upkeep::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Upkeep::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wakes_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Upkeep::Hurry() {
  hurry_.store(true);
  wakes_.notify_all();  // one that comes too early for the sleeper is seen at the next tick
}

void Upkeep::Add(std::shared_ptr<StorageNamespace> ns) {
  auto entry = std::make_shared<Entry>();
  entry->ns = std::move(ns);
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
  }
  Hurry();
}

std::vector<std::shared_ptr<Upkeep::Entry>> Upkeep::Entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

std::string Upkeep::reason(uint32_t ns) const {
  for (const auto& entry : Entries()) {
    if (entry->ns->ns != ns) continue;
    const std::lock_guard lock(entry->mutex);
    return entry->reason;
  }
  return "";
}

void Upkeep::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const uint64_t pause_ms = Round(NowMs());
    lock.lock();
    wakes_.wait_for(lock, std::chrono::milliseconds(pause_ms),
                    [&] { return stopping_ || hurry_.exchange(false); });
  }
}

uint64_t Upkeep::Round(uint64_t now_ms) {
  StorageContext& context = *parts_->context;
  context.catalog->SetServing(!context.loads->down() && !context.control->down());
  const std::vector<std::shared_ptr<Entry>> entries = Entries();
  for (const auto& entry : entries) LookAfter(entry, now_ms);
  const bool new_one = std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry->polled.load() && !entry->ns->measured.load();
  });
  if (new_one || now_ms >= reclaim_->due_ms) {
    Submit(reclaim_, *reclaim_, now_ms + context.options.poll_ms,
           [parts = parts_, entries] { Reclaim(*parts, entries); });
  }
  parts_->demoter.Tick();
  store_.NoteEpochsBelow();
  const StorageOptions& options = context.options;
  const uint64_t shortest = std::min({options.poll_ms, options.heartbeat_ms, options.sync_ms, 2 * kTickMs});
  return std::max<uint64_t>(shortest / 2, 1);
}

void Upkeep::LookAfter(const std::shared_ptr<Entry>& entry, uint64_t now_ms) {
  const StorageOptions& options = parts_->context->options;
  StorageNamespace& ns = *entry->ns;
  const auto submit = [&](Job& job, uint64_t pause_ms, auto task) {
    if (now_ms < job.due_ms) return;
    Submit(entry, job, now_ms + pause_ms, [parts = parts_, entry, task] { task(*parts, *entry); });
  };
  if (ns.state.load() == StorageNamespace::State::kOpening) {
    submit(entry->open, kRetryMs * (1 + entry->open_failures.load()), &Upkeep::Open);
  }
  if (ns.state.load() != StorageNamespace::State::kReady) return;
  if (ns.clearing.load()) {
    submit(entry->clear, kRetryMs, [](StorageParts& parts, Entry& of) {
      parts.context->control->Report(ConfirmClear(*parts.context, *of.ns));
    });
  }
  submit(entry->beat, options.heartbeat_ms, [](StorageParts& parts, Entry& of) {
    parts.context->control->Report(parts.peers.Heartbeat(*of.ns, NowMs()));
  });
  submit(entry->poll, options.poll_ms, [](StorageParts& parts, Entry& of) {
    parts.context->control->Report(parts.peers.Poll(*of.ns, NowMs()));
    of.polled.store(true);
  });
}

void Upkeep::Reclaim(StorageParts& parts, const std::vector<std::shared_ptr<Entry>>& entries) {
  std::vector<std::shared_ptr<Entry>> polled;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(polled),
               [](const auto& entry) { return entry->polled.load(); });
  parts.context->control->Report(parts.reclaimer.Round(NowMs()));
  for (const auto& entry : polled) entry->ns->measured.store(true);
}

// `owner` keeps the job alive for the task.
void Upkeep::Submit(const std::shared_ptr<void>& owner, Job& job, uint64_t next_ms,
                    std::function<void()> task) {
  if (job.under_way.exchange(true)) return;
  job.due_ms = next_ms;
  const Submitted answer =
      parts_->context->control->Submit(IoClass::kControl, [owner, &job, task = std::move(task)] {
        struct Ended {
          Job& job;
          ~Ended() { job.under_way.store(false); }
        } ended{job};
        task();
      });
  if (answer != Submitted::kYes) job.under_way.store(false);
}

void Upkeep::Open(StorageParts& parts, Entry& entry) {
  StorageContext& context = *parts.context;
  StorageNamespace& ns = *entry.ns;
  std::string refused;
  IoError error = OpenOnRoot(context, ns, &refused);
  // The first heartbeat makes this host's directory. One that finds no space makes a namespace that serves.
  if (error.ok() && refused.empty()) {
    error = parts.peers.Heartbeat(ns, NowMs());
    if (error.no_space()) error = {};
  }
  // What belongs to somebody else says nothing of the medium, which serves the other namespaces.
  const bool forbidden = error.code == EACCES || error.code == EPERM;
  if (!forbidden) context.control->Report(error);
  entry.open_failures = error.ok() ? 0 : std::min(entry.open_failures.load() + 1, kOpenFailuresMax);
  {
    const std::lock_guard lock(entry.mutex);
    entry.reason = refused.empty() ? (error.ok() ? "" : error.text()) : refused;
  }
  if (!refused.empty()) {
    ns.state.store(StorageNamespace::State::kRefused);
  } else if (error.ok()) {
    const StorageOptions& options = context.options;
    if (options.quota_bytes == 0 && options.namespace_quota_bytes == 0) ns.measured.store(true);
    ns.state.store(StorageNamespace::State::kReady);
  }
}

}  // namespace tpu_sync_native
