// What is particular to a POSIX root: nothing outside it, who may read what it holds, roots that cannot be
// used and roots that go away.
#include "fs/posix_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "file_tools.h"
#include "fs/posix_file_system.h"
#include "temporary_root.h"

namespace tpu_sync_native {
namespace {

using namespace testing;
namespace fs = std::filesystem;

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void Plant(const std::string& path, const std::string& data) {
  std::ofstream(path, std::ios::binary) << data;
}

mode_t ModeOf(const std::string& path) {
  struct stat about {};
  CHECK(lstat(path.c_str(), &about) == 0);
  return about.st_mode & 07777;
}

std::string WhyNot(FileSystem& files, int code) {
  std::string why;
  Is(files.CheckRoot(&why), code, "the root");
  return why;
}

// In a child process, for what is a process's own: user, umask.
void InChild(const std::function<void()>& run) {
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    run();
    std::fflush(nullptr);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// 252 GiB of which 150 GiB are kept for root: 28 % of what may be used is free, not 11 % of the whole.
TEST(WhatIsReservedForRootIsNoSpace) {
  struct statvfs about {};
  about.f_frsize = 4096;
  about.f_blocks = 66'053'021;
  about.f_bfree = 46'974'133;
  about.f_bavail = 7'518'840;
  const SpaceInfo space = UsableSpace(about);
  CHECK(space.free_bytes == 7'518'840ULL * 4096);
  CHECK(space.total_bytes == (66'053'021ULL - 46'974'133 + 7'518'840) * 4096);
  about.f_bfree = about.f_blocks + 1;  // an inconsistent answer of a network's file system
  CHECK(UsableSpace(about).total_bytes == 7'518'840ULL * 4096);
}

TEST(LinksAreNotFollowed) {
  const TemporaryRoot outside;
  const TemporaryRoot root;
  Plant(outside / "secret", "theirs");
  fs::create_directory(outside / "d");
  fs::create_directory(root / "v1");
  fs::create_symlink(outside / "secret", root / "v1/file");
  fs::create_directory_symlink(outside / "d", root / "v1/hosts");
  fs::create_symlink(outside / "none", root / "v1/dangling");
  const auto files = MakePosixFileSystem(root.path());

  std::unique_ptr<ReadFile> reader;
  std::unique_ptr<AppendFile> appender;
  std::string data;
  std::vector<DirEntry> entries;
  for (const std::string path : {"v1/file", "v1/dangling"}) {
    Is(files->OpenRead(path, &reader), ELOOP, path.c_str());
    Is(files->ReadAll(path, 100, &data), ELOOP, path.c_str());
    Is(files->OpenAppend(path, 0, &appender), EEXIST, path.c_str());
  }
  CHECK(!files->Publish("v1/hosts/x", "mine", false).ok());
  CHECK(!files->OpenAppend("v1/hosts/x", 0, &appender).ok());
  CHECK(!files->MakeDirectory("v1/hosts", false).ok());
  CHECK(!files->MakeDirectory("v1/hosts/x", false).ok());
  CHECK(!files->List("v1/hosts", &entries).ok());
  CHECK(!files->Rename("v1/hosts/y", "v1/z").ok());
  CHECK(!files->Remove("v1/hosts/y").ok());
  Ok(files->List("v1", &entries), "list");
  CHECK(entries.size() == 3);
  for (const DirEntry& entry : entries) CHECK(!entry.directory);
  // To replace or to remove a link is to do so to the link.
  Ok(files->Publish("v1/file", "mine", false), "publish over a link");
  Ok(files->Remove("v1/hosts"), "remove a link");
  CHECK(Contents(outside / "secret") == "theirs");
  CHECK(fs::is_empty(outside / "d"));
  CHECK(Contents(root / "v1/file") == "mine");
}

TEST(AFifoDoesNotHang) {
  const TemporaryRoot root;
  CHECK(mkfifo((root / "lease").c_str(), 0600) == 0);
  const auto files = MakePosixFileSystem(root.path());
  std::unique_ptr<ReadFile> reader;
  std::string data;
  CHECK(files->OpenRead("lease", &reader).code == EINVAL);
  CHECK(files->ReadAll("lease", 100, &data).code == EINVAL);
  std::unique_ptr<AppendFile> appender;
  CHECK(files->OpenAppend("lease", 0, &appender).code == EEXIST);
}

TEST(PrivateUnlessTheRootIsShared) {
  InChild([] {
    umask(0);
    const TemporaryRoot root;
    CHECK(chmod(root.path().c_str(), 0755) == 0);
    const auto files = MakePosixFileSystem(root.path());
    Ok(files->MakeDirectory("a/b", false), "directories");
    Ok(files->Publish("a/lease", "x", true), "publish");
    Append(*files, "a/seg", {}).reset();
    CHECK(ModeOf(root / "a") == 0700);
    CHECK(ModeOf(root / "a/b") == 0700);
    CHECK(ModeOf(root / "a/lease") == 0600);
    CHECK(ModeOf(root / "a/seg") == 0600);
  });
  InChild([] {
    umask(077);
    const TemporaryRoot root;
    CHECK(chmod(root.path().c_str(), 02770) == 0);
    const auto files = MakePosixFileSystem(root.path());
    Ok(files->MakeDirectory("a/b", false), "directories");
    Ok(files->Publish("a/lease", "x", true), "publish");
    Append(*files, "a/seg", {}).reset();
    CHECK(ModeOf(root / "a") == 02770);
    CHECK(ModeOf(root / "a/b") == 02770);
    CHECK(ModeOf(root / "a/lease") == 0660);
    CHECK(ModeOf(root / "a/seg") == 0660);
  });
}

TEST(RootsThatCannotBeUsed) {
  const TemporaryRoot above;
  const auto missing = MakePosixFileSystem(above / "none");
  std::string why = WhyNot(*missing, ENOENT);
  CHECK(why.find(above / "none") != std::string::npos && why.find("does not exist") != std::string::npos);
  std::string data;
  CHECK(missing->ReadAll("x", 10, &data).code == ENOENT);
  // It serves as soon as it is there.
  fs::create_directory(above / "none");
  CHECK(WhyNot(*missing, 0).empty());
  Ok(missing->Publish("x", "1", true), "publish");

  Plant(above / "file", "theirs");
  why = WhyNot(*MakePosixFileSystem(above / "file"), ENOTDIR);
  CHECK(why.find(above / "file") != std::string::npos && why.find("not a directory") != std::string::npos);
  CHECK(Contents(above / "file") == "theirs");

  // The root itself may be reached over a link: operators do that.
  fs::create_directory_symlink(above / "none", above / "link");
  CHECK(WhyNot(*MakePosixFileSystem(above / "link"), 0).empty());
}

TEST(ARootOfSomebodyElse) {
  const TemporaryRoot root;
  CHECK(chmod(root.path().c_str(), 0755) == 0);
  InChild([&] {
    // Root may write anywhere: be somebody else.
    if (geteuid() == 0) {
      CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    } else {
      CHECK(chmod(root.path().c_str(), 0555) == 0);
    }
    const auto files = MakePosixFileSystem(root.path());
    const std::string why = WhyNot(*files, EACCES);
    CHECK(why.find(root.path()) != std::string::npos &&
          why.find("not writable by user") != std::string::npos);
    std::vector<DirEntry> entries;
    Ok(files->List("", &entries), "what can be read is read");
    CHECK(entries.empty());  // no probe was left
  });
  CHECK(chmod(root.path().c_str(), 0755) == 0);
}

TEST(ARootThatIsMadeAnew) {
  const TemporaryRoot above;
  const std::string root = above / "root";
  fs::create_directory(root);
  const auto files = MakePosixFileSystem(root);
  Ok(files->MakeDirectory("v1", false), "make");
  Ok(files->Publish("v1/a", "1", true), "publish");
  fs::remove_all(root);
  std::string data;
  Is(files->ReadAll("v1/a", 10, &data), ENOENT, "gone");
  CHECK(!files->MakeDirectory("v1", false).ok());
  CHECK(!WhyNot(*files, ENOENT).empty());
  fs::create_directory(root);
  CHECK(WhyNot(*files, 0).empty());
  Ok(files->MakeDirectory("v1", false), "make again");
  Ok(files->Publish("v1/a", "2", true), "publish again");
  CHECK(Contents(root + "/v1/a") == "2");
}

TEST(LeftOverTemporaries) {
  const TemporaryRoot root;
  fs::create_directory(root / "dead");
  const std::vector<std::string> theirs = {".tmp-12-0123456789abcde",
                                           ".tmp-12-0123456789abcdeF",
                                           ".tmp--0123456789abcdef",
                                           ".tmp-12-0123456789abcdef0",
                                           ".tmp",
                                           "tmp-12-0123456789abcdef",
                                           ".hidden"};
  for (const std::string& name : theirs) Plant(root / ("dead/" + name), "theirs");
  Plant(root / "dead/.tmp-12-0123456789abcdef", "ours");
  Plant(root / "dead/.tmp-4000000-fedcba9876543210", "ours");
  fs::create_directory(root / "dead/.tmp-1-0123456789abcdef");
  fs::create_symlink(root.path(), root / "dead/.tmp-2-0123456789abcdef");
  const auto files = MakePosixFileSystem(root.path());
  uint64_t removed = 0;
  Ok(files->RemoveTemporaries("dead", &removed), "remove");
  CHECK(removed == 3);  // the link too, not what it leads to
  CHECK(fs::is_directory(root / "dead/.tmp-1-0123456789abcdef"));
  for (const std::string& name : theirs) CHECK(Contents(root / ("dead/" + name)) == "theirs");
  Is(files->RemoveTemporaries("none", &removed), ENOENT, "no directory");
  // A file of a name like that is out of everybody else's reach.
  Is(files->Remove("dead/.tmp-1-0123456789abcdef"), EINVAL, "not a name of ours");
}

TEST(ReservedSpaceIsGivenBack) {
  const TemporaryRoot root;
  const auto files = MakePosixFileSystem(root.path());
  Buffer data(8192);
  const auto blocks = [&](const std::string& name) {
    struct stat about {};
    CHECK(stat((root / name).c_str(), &about) == 0);
    CHECK(about.st_size == 8192);
    return static_cast<uint64_t>(about.st_blocks) * 512;
  };
  std::unique_ptr<AppendFile> file;
  Ok(files->OpenAppend("closed", 64 << 20, &file), "open");
  Ok(file->Append(std::vector{data.all()}), "append");
  Ok(file->Sync(), "sync");
  Ok(file->Close(), "close");
  CHECK(blocks("closed") <= 64 << 10);
  Ok(files->OpenAppend("abandoned", 64 << 20, &file), "open");
  Ok(file->Append(std::vector{data.all()}), "append");
  file.reset();
  CHECK(blocks("abandoned") <= 64 << 10);
}

TEST(FilesMayShrinkUnderReaders) {
  const TemporaryRoot root;
  for (const bool direct : {true, false}) {
    const auto files = MakePosixFileSystem(root.path(), {.direct = direct});
    Buffer data(4 << 20);
    const std::string name = direct ? "a" : "b";
    Append(*files, name, {data.all()}).reset();
    std::unique_ptr<ReadFile> reader;
    Ok(files->OpenRead(name, &reader), "open");
    CHECK(truncate((root / name).c_str(), 1'000'001) == 0);
    Buffer got(4 << 20, 2);
    Is(reader->Read(0, std::vector{got.all()}), IoError::kShort, "shorter");
    Ok(reader->Read(0, std::vector{got.part(0, 1'000'001)}), "what is left");
    CHECK(std::memcmp(got.data(), data.data(), 1'000'001) == 0);
    CHECK(truncate((root / name).c_str(), 0) == 0);
    Is(reader->Read(0, std::vector{got.part(0, 4096)}), IoError::kShort, "empty");
  }
}

}  // namespace
}  // namespace tpu_sync_native

CHECK_MAIN()
