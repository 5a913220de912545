#include "arena/arena.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <thread>

#include "store_fixture.h"

namespace tpu_sync_native::testing {

TEST(SizesAreCheckedAndNamed) {
  MemFile file("data");
  CHECK_THROWS(Arena(file.fd(), 0, 4096), "dram_bytes");
  CHECK_THROWS(Arena(file.fd(), 8192, 100), "slab_bytes");
  CHECK_THROWS(Arena(file.fd(), 4096, 8192), "at least one slab");
  CHECK_THROWS(Arena(-1, 8192, 4096), "arena");
}

TEST(PopulationCommitsEveryPage) {
  MemFile file("data");
  Arena arena(file.fd(), 64 << 20, 2 << 20);
  CHECK(arena.populated_bytes() == 0 && arena.populated_slabs() == 0);
  arena.StartPopulation();
  arena.StartPopulation();  // the same one
  while (arena.populated_bytes() < arena.bytes()) std::this_thread::yield();
  arena.StopPopulation();
  arena.StopPopulation();
  CHECK(arena.population_error().empty());
  struct stat status {};
  CHECK(fstat(file.fd(), &status) == 0);
  CHECK(static_cast<uint64_t>(status.st_blocks) * 512 >= arena.bytes());
  arena.data()[arena.bytes() - 1] = std::byte{1};
}

TEST(StoppingEarlyKeepsWhatIsThere) {
  MemFile file("data");
  Arena arena(file.fd(), 512 << 20, 2 << 20);
  arena.StartPopulation();
  arena.StopPopulation();
  CHECK(arena.populated_bytes() <= arena.bytes());
  arena.Populate();
  CHECK(arena.populated_bytes() <= arena.bytes());
}

TEST(ShortageLeavesThePopulatedPartUsable) {
  constexpr uint64_t kAllowed = 64ull << 20;
  MemFile file("data");
  Arena arena(file.fd(), 4 * kAllowed, 2 << 20);
  CHECK(ftruncate(file.fd(), kAllowed) == 0);
  // From here on the file may not grow: allocating beyond its end fails, as on a full file system.
  CHECK(fcntl(file.fd(), F_ADD_SEALS, F_SEAL_GROW) == 0);
  arena.Populate();
  CHECK(arena.populated_bytes() == kAllowed);
  CHECK(arena.population_error().find("populated 67108864 of 268435456 bytes") == 0);
  arena.data()[kAllowed - 1] = std::byte{1};
}

TEST(WhatIsPopulatedIsKnownOnATmpfs) {
  MemFile file("data");
  Arena before(file.fd(), 4 << 20, 2 << 20);
  before.Populate();
  CHECK(fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 << 20, 4096) == 0);
  Arena after(file.fd(), 4 << 20, 2 << 20);
  after.CountPopulated();
  CHECK(after.populated_bytes() == 3 << 20 && after.populated_slabs() == 1);
}

TEST(ElsewhereEveryPageIsPopulatedAgainWithItsBytes) {
  const int fd = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  CHECK(fd >= 0);
  struct statfs mount {};
  CHECK(fstatfs(fd, &mount) == 0);
  if (mount.f_type == TMPFS_MAGIC) {
    std::fprintf(stderr, "        NOT RUN: the build lies on a tmpfs\n");
  } else {
    Arena before(fd, 4 << 20, 2 << 20);
    before.Populate();
    before.data()[0] = std::byte{7};
    Arena after(fd, 4 << 20, 2 << 20);
    after.CountPopulated();
    CHECK(after.populated_bytes() == 0 && after.populated_slabs() == 0);
    after.Populate();
    CHECK(after.populated_bytes() == after.bytes() && after.data()[0] == std::byte{7});
  }
  close(fd);
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
