#include "fs/uring.h"

#include <linux/io_uring.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace tpu_sync_native {
namespace {

uint32_t Load(const uint32_t* word) {
  return std::atomic_ref<const uint32_t>(*word).load(std::memory_order_acquire);
}
void Store(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
}

}  // namespace

struct Uring::Rings {
  int fd = -1;
  bool broken = false;
  void* rings = MAP_FAILED;
  size_t rings_bytes = 0;
  void* entries_map = MAP_FAILED;
  size_t entries_bytes = 0;

  uint32_t *sq_tail = nullptr, *sq_mask = nullptr, *sq_array = nullptr;
  uint32_t *cq_head = nullptr, *cq_tail = nullptr, *cq_mask = nullptr;
  io_uring_sqe* entries = nullptr;
  io_uring_cqe* completions = nullptr;

  ~Rings() {
    if (entries_map != MAP_FAILED) munmap(entries_map, entries_bytes);
    if (rings != MAP_FAILED) munmap(rings, rings_bytes);
    if (fd >= 0) close(fd);
  }
};

Uring::~Uring() = default;

std::string Uring::Open() {
  rings_ = std::make_unique<Rings>();
  Rings& r = *rings_;
  io_uring_params params;
  // One thread alone submits and waits: then completions need no interrupts (kernel 6.1); older ones say
  // EINVAL.
  for (const uint32_t flags : {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0u}) {
    std::memset(&params, 0, sizeof params);
    params.flags = flags;
    r.fd = static_cast<int>(syscall(SYS_io_uring_setup, kDepth, &params));
    if (r.fd >= 0 || errno != EINVAL) break;
  }
  if (r.fd < 0) return "io_uring_setup: " + IoError{errno}.text();
  if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0) return "io_uring of this kernel is too old";

  const size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
  const size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  r.rings_bytes = std::max(sq_bytes, cq_bytes);
  r.rings = mmap(nullptr, r.rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r.fd,
                 IORING_OFF_SQ_RING);
  r.entries_bytes = params.sq_entries * sizeof(io_uring_sqe);
  r.entries_map = mmap(nullptr, r.entries_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r.fd,
                       IORING_OFF_SQES);
  if (r.rings == MAP_FAILED || r.entries_map == MAP_FAILED) return "io_uring mmap: " + IoError{errno}.text();

  auto* const base = static_cast<uint8_t*>(r.rings);
  const auto word = [base](uint32_t offset) { return reinterpret_cast<uint32_t*>(base + offset); };
  r.sq_tail = word(params.sq_off.tail);
  r.sq_mask = word(params.sq_off.ring_mask);
  r.sq_array = word(params.sq_off.array);
  r.cq_head = word(params.cq_off.head);
  r.cq_tail = word(params.cq_off.tail);
  r.cq_mask = word(params.cq_off.ring_mask);
  r.entries = static_cast<io_uring_sqe*>(r.entries_map);
  r.completions = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
  return "";
}

std::unique_ptr<Uring> Uring::Make(std::string* why) {
  std::unique_ptr<Uring> ring(new Uring);
  *why = ring->Open();
  return why->empty() ? std::move(ring) : nullptr;
}

Uring* Uring::OfThisThread() {
  thread_local std::unique_ptr<Uring> ring;
  thread_local pid_t asked_in = 0;
  if (asked_in != getpid()) {
    asked_in = getpid();
    std::string why;
    ring = Make(&why);
  }
  return ring.get();
}

std::string Uring::WhyNot() {
  std::string why;
  Make(&why);
  return why;
}

void Uring::Push(int fd, bool write, const IoPiece& piece, const IoPlan& plan, uint64_t tag) {
  Rings& r = *rings_;
  const uint32_t tail = *r.sq_tail;
  const uint32_t slot = tail & *r.sq_mask;
  io_uring_sqe& entry = r.entries[slot];
  std::memset(&entry, 0, sizeof entry);
  entry.opcode = write ? IORING_OP_WRITEV : IORING_OP_READV;
  entry.fd = fd;
  entry.off = piece.offset;
  entry.addr = reinterpret_cast<uintptr_t>(plan.vectors.data() + piece.first);
  entry.len = piece.count;
  entry.user_data = tag;
  r.sq_array[slot] = slot;
  Store(r.sq_tail, tail + 1);
}

bool Uring::Pop(uint64_t* tag, int32_t* result) {
  Rings& r = *rings_;
  const uint32_t head = *r.cq_head;
  if (head == Load(r.cq_tail)) return false;
  const io_uring_cqe& completion = r.completions[head & *r.cq_mask];
  *tag = completion.user_data;
  *result = completion.res;
  Store(r.cq_head, head + 1);
  return true;
}

IoError Uring::Run(int fd, bool write, IoPlan& plan, uint64_t unit) {
  const auto plainly = [&](const IoPiece& piece, uint64_t skip) {
    return write ? WritePiece(fd, plan, piece, unit, skip) : ReadPiece(fd, plan, piece, unit, skip);
  };
  IoError error;
  size_t next = 0;
  uint32_t pushed = 0;     // and not taken by the kernel yet
  uint32_t in_flight = 0;  // pushed ones included
  while (in_flight != 0 || (error.ok() && next < plan.pieces.size())) {
    // What goes through the bounce buffer, and what is left to do when the ring refuses, goes plainly.
    while (error.ok() && next < plan.pieces.size() && in_flight < kDepth && !plan.pieces[next].bounced &&
           !rings_->broken) {
      Push(fd, write, plan.pieces[next], plan, next);
      ++next;
      ++pushed;
      ++in_flight;
    }
    if (in_flight == 0) {
      error = plainly(plan.pieces[next++], 0);
      continue;
    }
    const long taken =
        syscall(SYS_io_uring_enter, rings_->fd, pushed, 1, IORING_ENTER_GETEVENTS, nullptr, size_t{0});
    if (taken >= 0) {
      pushed -= static_cast<uint32_t>(taken);
    } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
      // No ring that was ever made well says anything else. What it has not taken is done plainly; what it
      // has taken may still write into memory, so this thread stays until it is back.
      rings_->broken = true;
      *rings_->sq_tail -= pushed;
      in_flight -= pushed;
      for (; pushed != 0; --pushed) {
        const IoPiece& piece = plan.pieces[next - pushed];
        if (error.ok()) error = plainly(piece, 0);
      }
      pollfd ready{rings_->fd, POLLIN, 0};
      if (in_flight != 0) poll(&ready, 1, 100);
    }
    uint64_t tag = 0;
    int32_t result = 0;
    while (Pop(&tag, &result)) {
      --in_flight;
      const IoPiece& piece = plan.pieces[tag];
      if (!error.ok()) continue;
      if (result < 0 && result != -EINTR && result != -EAGAIN) {
        error = {-result};
      } else if (result < 0 || static_cast<uint64_t>(result) < piece.bytes) {
        error = plainly(piece, result < 0 ? 0 : static_cast<uint64_t>(result));
      }
    }
  }
  return error;
}

}  // namespace tpu_sync_native
