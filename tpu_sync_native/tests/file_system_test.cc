// The contract of FileSystem, on every implementation and in each of its ways to move bytes.
#include "fs/file_system.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fake_files.h"
#include "file_system_kit.h"
#include "fs/io_plan.h"
#include "fs/posix_file_system.h"
#include "fs/uring.h"
#include "temporary_root.h"

namespace tpu_sync_native {
namespace {

using namespace testing;

// A fresh root per check, all removed at the end.
MakeFiles Posix(const std::shared_ptr<std::vector<std::unique_ptr<TemporaryRoot>>>& roots,
                PosixOptions options, std::string above = "") {
  return [=]() -> std::shared_ptr<FileSystem> {
    roots->push_back(std::make_unique<TemporaryRoot>(above));
    return MakePosixFileSystem(roots->back()->path(), options);
  };
}

void RunPosixKit(const char* name, const PosixOptions& options, const std::string& above = "") {
  const auto roots = std::make_shared<std::vector<std::unique_ptr<TemporaryRoot>>>();
  RunFileSystemKit(name, Posix(roots, options, above));
}

TEST(Memory) {
  RunFileSystemKit("memory", [] { return std::make_shared<MemoryFiles>(); });
  FileSystemTraits objects;
  objects.appends_readable = false;
  objects.renames = false;
  RunFileSystemKit("memory as an object store", [&] { return std::make_shared<MemoryFiles>(objects); });
}

TEST(Doubles) {
  RunFileSystemKit("memory behind an empty plan", []() -> std::shared_ptr<FileSystem> {
    return WithFaults(std::make_shared<MemoryFiles>(), std::make_shared<FaultPlan>());
  });
}

TEST(PosixDirect) { RunPosixKit("O_DIRECT", {.ring_reads = false}); }
TEST(PosixRing) { RunPosixKit("O_DIRECT with a ring", {.ring_reads = true, .ring_writes = true}); }
TEST(PosixBuffered) { RunPosixKit("buffered", {.direct = false, .ring_reads = false}); }
TEST(PosixBufferedRing) { RunPosixKit("buffered with a ring", {.direct = false, .ring_writes = true}); }
TEST(PosixWithoutReservation) { RunPosixKit("nothing reserved", {.reserve = false}); }
TEST(PosixInMemory) { RunPosixKit("tmpfs", {}, "/dev/shm"); }

TEST(ThisMachineHasWhatTheOthersTest) {
  // Otherwise the kits above would have run the same way twice without saying so.
  const TemporaryRoot root;
  const auto files = MakePosixFileSystem(root.path());
  std::string why;
  CHECK(files->CheckRoot(&why).ok());
  std::fprintf(stderr, "  %s; io_uring: %s\n", files->traits().name.c_str(),
               Uring::WhyNot().empty() ? "yes" : Uring::WhyNot().c_str());
  CHECK(files->traits().name.find(Uring::WhyNot().empty() ? "io_uring" : "posix") != std::string::npos);
}

// Refuses, in a child process, what old kernels, seccomp profiles and network file systems refuse.
void WithoutCalls(const std::vector<int>& calls, int code, const std::function<void()>& run) {
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (const int call : calls) {
      filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
      filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(code)));
    }
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    run();
    std::fflush(nullptr);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(PosixWithoutNewCalls) {
  for (const int code : {ENOSYS, EPERM}) {
    WithoutCalls({SYS_openat2, SYS_renameat2, SYS_io_uring_setup, SYS_fallocate}, code, [] {
      CHECK(!Uring::WhyNot().empty());
      RunPosixKit("old system calls only", {.ring_writes = true});
    });
  }
}

TEST(RingThatDies) {
  // The call that makes rings work is refused after the ring was made: the pieces go plainly.
  WithoutCalls({SYS_io_uring_enter}, EINVAL,
               [] { RunPosixKit("a dead ring", {.ring_reads = true, .ring_writes = true}); });
}

TEST(PlansCoverAllAndKeepToTheUnit) {
  std::mt19937_64 random(7);
  Buffer memory(8 << 20);
  for (int round = 0; round < 2000; ++round) {
    const bool write = round % 2 == 0;
    const uint64_t unit = round % 5 == 0 ? 1 : kDirectUnit;
    const uint64_t offset = write ? kDirectUnit * (random() % 100) : random() % 1'000'000;
    std::vector<IoVec> parts;
    uint64_t total = 0;
    for (uint64_t count = random() % 10; count != 0; --count) {
      const uint64_t at = random() % 2 == 0 ? kDirectUnit * (random() % 100) : random() % 1'000'000;
      parts.push_back(
          memory.part(at, random() % 2 == 0 ? kDirectUnit * (random() % 700) : random() % 3'000'000));
      total += parts.back().bytes;
    }
    const IoPlan plan = PlanIo(offset, parts, unit, 1 << 20);
    uint64_t end = offset;
    size_t part = 0;
    uint64_t done = 0;  // of that part
    for (const IoPiece& piece : plan.pieces) {
      CHECK(piece.offset == end);
      CHECK(piece.count != 0 && piece.count <= 1024);
      if (write && unit != 1) CHECK(piece.offset % unit == 0);
      if (piece.bounced) {
        CHECK(unit != 1);
        CHECK((piece.offset % unit) + piece.bytes <= kBounceBytes);
      } else {
        CHECK(piece.bytes <= 1 << 20 && piece.bytes % unit == 0 && piece.offset % unit == 0);
      }
      uint64_t bytes = 0;
      for (uint32_t i = piece.first; i < piece.first + piece.count; ++i) {
        const iovec& vector = plan.vectors[i];
        while (part < parts.size() && done == parts[part].bytes) {
          ++part;
          done = 0;
        }
        CHECK(part < parts.size());
        CHECK(vector.iov_base == static_cast<uint8_t*>(parts[part].data) + done);
        CHECK(vector.iov_len != 0 && vector.iov_len <= parts[part].bytes - done);
        if (!piece.bounced) CHECK(reinterpret_cast<uintptr_t>(vector.iov_base) % unit == 0);
        done += vector.iov_len;
        bytes += vector.iov_len;
      }
      CHECK(bytes == piece.bytes);
      end += bytes;
    }
    CHECK(end == offset + total);
  }
}

}  // namespace
}  // namespace tpu_sync_native

CHECK_MAIN()
