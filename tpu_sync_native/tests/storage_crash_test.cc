// A host is killed (SIGKILL) at a named point of its work on a real directory, and another one goes on with
// what is left: all that it serves is right, what was flushed is served, nothing of ours is left lying about.
//
// The host that dies is a process of its own: this program, run with --child.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fs/posix_file_system.h"
#include "segment/names.h"
#include "segment/scan.h"
#include "storage/own_lease.h"
#include "temporary_root.h"
#include "tier_fixture.h"

using namespace tpu_sync_native;
using namespace tpu_sync_native::testing;

namespace {

enum class When { kBefore, kMiddle, kAfter };

struct KillPoint {
  const char* name;
  FileOp op;
  const char* pattern;  // of the path, as fnmatch
  When when;
  int skip = 0;
  enum class Needs { kWrites, kDeadHost, kSmallQuota } needs = Needs::kWrites;
};
using Needs = KillPoint::Needs;

constexpr KillPoint kPoints[] = {
    {"open", kOpOpenAppend, "*.kvs", When::kAfter, 1},
    {"append, before", kOpAppend, "*.kvs", When::kBefore, 4},
    {"append, middle", kOpAppend, "*.kvs", When::kMiddle, 4},
    {"append of a header, middle", kOpAppend, "*-0000000002.kvs", When::kMiddle},
    {"append, after", kOpAppend, "*.kvs", When::kAfter, 4},
    {"sync, before", kOpSync, "*.kvs", When::kBefore, 3},
    {"sync, after", kOpSync, "*.kvs", When::kAfter, 3},
    {"tail, before", kOpPublish, "*/tail.idx", When::kBefore, 2},
    {"tail, after", kOpPublish, "*/tail.idx", When::kAfter, 2},
    {"close", kOpClose, "*.kvs", When::kAfter, 1},
    {"index, before", kOpPublish, "*/seg-*.idx", When::kBefore, 1},
    {"index, after", kOpPublish, "*/seg-*.idx", When::kAfter, 1},
    {"tail removed, before", kOpRemove, "*/tail.idx", When::kBefore, 1},
    {"tail removed, after", kOpRemove, "*/tail.idx", When::kAfter, 1},
    {"lease, before", kOpPublish, "*/lease", When::kBefore, 5},
    {"lease, after", kOpPublish, "*/lease", When::kAfter, 5},
    {"adoption renamed, before", kOpRename, "*/hosts/*", When::kBefore, 0, Needs::kDeadHost},
    {"adoption renamed, after", kOpRename, "*/hosts/*", When::kAfter, 0, Needs::kDeadHost},
    {"adopted lease removed", kOpRemove, "*.adopt.*/lease", When::kAfter, 0, Needs::kDeadHost},
    {"adopted tail sealed, before", kOpPublish, "*.adopt.*/seg-*.idx", When::kBefore, 0, Needs::kDeadHost},
    {"adopted tail sealed, after", kOpPublish, "*.adopt.*/seg-*.idx", When::kAfter, 0, Needs::kDeadHost},
    {"adopted tail removed", kOpRemove, "*.adopt.*/tail.idx", When::kAfter, 0, Needs::kDeadHost},
    {"reclaim, before", kOpRemove, "*/seg-*.idx", When::kBefore, 1, Needs::kSmallQuota},
    {"reclaim, between", kOpRemove, "*/seg-*.idx", When::kAfter, 1, Needs::kSmallQuota},
    {"reclaim, segment, before", kOpRemove, "*/seg-*.kvs", When::kBefore, 1, Needs::kSmallQuota},
    {"reclaim, after", kOpRemove, "*/seg-*.kvs", When::kAfter, 1, Needs::kSmallQuota},
};

StorageOptions CrashOptions(bool small_quota) {
  StorageOptions options = QuickOptions();
  MakeHostId(options.host_id);
  std::memcpy(&options.boot_id, options.host_id, sizeof(options.boot_id));
  options.segment_bytes = 128 << 10;
  options.dead_after_ms = 400;
  if (small_quota) options.quota_bytes = 4 << 20;
  return options;
}

constexpr uint32_t kBatch = 8;

[[noreturn]] void Die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// Writes chunks of 0, 1, 2, ... until it is killed; after each batch that is flushed, the number is in
// `progress`.
[[noreturn]] void RunChild(const KillPoint& point, const std::string& root, const std::string& progress) {
  alarm(60);
  std::atomic<int> seen{0};
  std::atomic<bool> torn{false};
  const auto matches = [&](const FileCall& call) {
    return call.op == point.op && fnmatch(point.pattern, call.path.c_str(), 0) == 0;
  };
  FileHooks hooks;
  hooks.before = [&](const FileCall& call) {
    FileVerdict verdict;
    if (point.when == When::kAfter || !matches(call) || seen.fetch_add(1) != point.skip) return verdict;
    if (point.when == When::kBefore) Die();
    torn = true;
    verdict.error = {EIO};
    verdict.bytes_done = call.bytes / 2 / 512 * 512;
    return verdict;
  };
  hooks.after = [&](const FileCall& call, const IoError& error) {
    if (torn.load() && matches(call)) Die();
    if (point.when == When::kAfter && error.ok() && matches(call) && seen.fetch_add(1) == point.skip) Die();
  };
  auto files = std::make_shared<HookedFiles>(MakePosixFileSystem(root), hooks);
  const int notes = open(progress.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  CHECK(notes >= 0);
  TierHost host(files, CrashOptions(point.needs == Needs::kSmallQuota));
  host.Start();
  // A chunk that is on storage already is not written again: beside what the first host left, others.
  const uint64_t first = point.needs == Needs::kDeadHost ? 10'000 : 0;
  for (uint64_t number = first;; number += kBatch) {
    host.Put(number, kBatch);
    host.Flush();
    uint64_t dropped = 0;
    for (const char* why : {"queue", "evicted", "full", "down", "error"}) {
      dropped += host.Stat(std::string("storage_dropped_") + why);
    }
    const uint64_t flushed = number + kBatch - first;
    if (dropped == 0) CHECK(pwrite(notes, &flushed, sizeof(flushed), 0) == sizeof(flushed));
    host.Forget();
  }
}

// Runs a host to its death.
void Kill(const KillPoint& point, const std::string& root, const std::string& progress) {
  const std::string index = std::to_string(&point - kPoints);
  const char* const arguments[] = {"/proc/self/exe", "--child",        index.c_str(),
                                   root.c_str(),     progress.c_str(), nullptr};
  pid_t child = 0;
  CHECK(posix_spawn(&child, arguments[0], nullptr, nullptr, const_cast<char**>(arguments), environ) == 0);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
    Fail(__FILE__, __LINE__, "was not killed at", point.name);
}

uint64_t Progress(const std::string& path) {
  uint64_t flushed = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&flushed), sizeof(flushed));
  return flushed;
}

// Directories of other hosts that this one has not taken over yet, and segments in those it has that have no
// index.
int WorkLeft(const std::string& root, const std::string& host) {
  const auto files = MakePosixFileSystem(root);
  const std::string hosts = HostsDirectory(reinterpret_cast<const uint8_t*>(TierHost::kId));
  std::vector<DirEntry> directories, entries;
  CHECK(files->List(hosts, &directories).ok());
  int left = 0;
  for (const DirEntry& directory : directories) {
    if (directory.name == host) continue;
    if (!directory.name.ends_with(host)) ++left;
    entries.clear();
    if (!files->List(hosts + "/" + directory.name, &entries).ok()) continue;  // gone meanwhile
    for (const DirEntry& entry : entries) {
      left += entry.name.ends_with(".kvs") - entry.name.ends_with(".idx") + 2 * (entry.name == kTailName);
    }
  }
  return left;
}

// Every index leads to records that verify; nothing is left that has no index, but for the host's own tail.
void CheckSound(const std::string& root, const std::string& host) {
  const auto files = MakePosixFileSystem(root);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    const std::string path = std::filesystem::relative(entry.path(), root).string();
    if (path.find(host + "/") != std::string::npos && path.find(".adopt.") == std::string::npos) continue;
    CHECK(name.find(".tmp-") == std::string::npos);
    CHECK(name != kTailName);
    uint64_t number = 0;
    if (!ParseSegmentName(name, &number)) continue;
    std::string index;
    SegmentIdentity identity;
    uint64_t segment_bytes = 0;
    bool sealed = false;
    std::vector<IndexEntry> entries;
    const std::string beside = path.substr(0, path.size() - name.size()) + IndexName(number);
    CHECK(files->ReadAll(beside, 1 << 20, &index).ok());
    CHECK(DecodeIndex(index, &identity, &segment_bytes, &sealed, &entries).empty());
    ScanResult scan;
    CHECK(ScanSegment(*files, path, true, &scan).ok());
    CHECK(scan.valid_bytes >= segment_bytes);
    CHECK(scan.entries.size() >= entries.size());
  }
}

// All of them, in parts that the arena holds.
bool Serves(TierHost& host, uint64_t first, uint64_t count) {
  for (uint64_t number = first; number < first + count; number += kBatch) {
    if (host.Get(number, kBatch) != kBatch) return false;
    host.Forget();
  }
  return true;
}

void Survive(const KillPoint& point) {
  std::fprintf(stderr, "  %s\n", point.name);
  TemporaryRoot root;
  const TemporaryRoot notes;
  if (point.needs == Needs::kDeadHost) Kill(kPoints[8], root.path(), notes / "first");
  Kill(point, root.path(), notes / "second");
  const StorageOptions options = CrashOptions(point.needs == Needs::kSmallQuota);
  const std::string me = HexId(options.host_id);
  TierHost host(MakePosixFileSystem(root.path()), options);
  host.Start();
  CHECK(Eventually([&] { return WorkLeft(root.path(), me) == 0; }));
  CHECK(host.tier->state() == "ok");
  const uint64_t flushed = Progress(notes / "second");
  if (point.needs == Needs::kSmallQuota) {
    for (uint64_t number = 0; number < flushed + kBatch; ++number) host.Get(number, 1);
  } else {
    const uint64_t base = point.needs == Needs::kDeadHost ? 10'000 : 0;
    CHECK(Eventually([&] { return Serves(host, base, flushed); }));
    if (point.needs == Needs::kDeadHost) {
      const uint64_t before = Progress(notes / "first");
      CHECK(Eventually([&] { return Serves(host, 0, before); }));
    }
    for (uint64_t number = base + flushed; number < base + flushed + kBatch; ++number) host.Get(number, 1);
  }
  // And it goes on, where there is a quota as soon as some rounds have seen what it has and what others have.
  uint64_t next = 50'000;
  CHECK(Eventually([&] {
    CHECK(host.Put(next, kBatch) == kBatch);
    CHECK(host.Flush());
    host.Forget();
    next += kBatch;
    return host.Get(next - kBatch, kBatch) == kBatch;
  }));
  CHECK(host.Stat("storage_failed_corrupt") == 0);
  CHECK(host.tier->Stop(10'000));
  CheckSound(root.path(), me);
}

void SurviveAll(Needs needs) {
  for (const KillPoint& point : kPoints) {
    if (point.needs == needs) Survive(point);
  }
}

}  // namespace

TEST(KilledWhileItWrites) { SurviveAll(Needs::kWrites); }
TEST(KilledWhileItAdopts) { SurviveAll(Needs::kDeadHost); }
TEST(KilledWhileItReclaims) { SurviveAll(Needs::kSmallQuota); }

int main(int argc, char** argv) {
  if (argc == 5 && std::string_view(argv[1]) == "--child") {
    RunChild(kPoints[std::atoi(argv[2])], argv[3], argv[4]);
  }
  return RunTests(argc, argv);
}
