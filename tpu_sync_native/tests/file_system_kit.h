// What every FileSystem owes its callers, as tests: run against the POSIX one in each of its ways to move
// bytes, the one in memory, and those over Python objects. Each check gets a file system with an empty root.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "file_tools.h"
#include "fs/file_system.h"

namespace tpu_sync_native::testing {

using MakeFiles = std::function<std::shared_ptr<FileSystem>()>;

inline void KitDirectories(FileSystem& files) {
  Ok(files.MakeDirectory("v1/ab/hosts", false), "parents too");
  Ok(files.MakeDirectory("v1/ab/hosts", false), "there already");
  Ok(files.Publish("v1/ab/meta.json", "{}", false), "publish");
  std::vector<DirEntry> entries;
  Ok(files.List("v1/ab", &entries), "list");
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  CHECK(entries.back().name == "meta.json" && !entries.back().directory);
  Ok(files.List("", &entries), "list the root");
  CHECK(entries.size() == 1 && entries[0].name == "v1" && entries[0].directory);
  Is(files.Remove("v1/ab/none"), ENOENT, "remove nothing");
  Ok(files.Remove("v1/ab/meta.json"), "remove");
  std::string data;
  Is(files.ReadAll("v1/ab/meta.json", 100, &data), ENOENT, "removed");
  SpaceInfo space;
  Ok(files.Space(&space), "space");
  CHECK(space.free_bytes <= space.total_bytes);
  std::string why;
  Ok(files.CheckRoot(&why), "the root");
  CHECK(why.empty());
  if (!files.traits().renames) return;  // an object store has no directories of its own
  CHECK(files.MakeDirectory("v1/ab/hosts", true).code == EEXIST);
  CHECK(files.MakeDirectory("v1/none/x", true).code == ENOENT);
  Ok(files.Publish("v1/ab/hosts/x", "", false), "publish nothing");
  CHECK(files.MakeDirectory("v1/ab/hosts/x", false).code == EEXIST);
  CHECK(files.MakeDirectory("v1/ab/hosts/x/y", false).code == ENOTDIR);
  CHECK(files.Remove("v1/ab/hosts").code == ENOTEMPTY);
  CHECK(files.List("v1/none", &entries).code == ENOENT);
  CHECK(files.List("v1/ab/hosts/x", &entries).code == ENOTDIR);
  CHECK(files.ReadAll("v1/ab/hosts", 100, &data).code == EISDIR);
  std::unique_ptr<ReadFile> reader;
  CHECK(files.OpenRead("v1/ab/hosts", &reader).code == EISDIR);
  CHECK(files.Publish("v1/none/x", "", false).code == ENOENT);
  std::unique_ptr<AppendFile> appender;
  CHECK(files.OpenAppend("v1/none/x", 0, &appender).code == ENOENT);
  Ok(files.Remove("v1/ab/hosts/x"), "remove");
  Ok(files.Remove("v1/ab/hosts"), "remove an empty directory");
}

inline void KitUnsafePaths(FileSystem& files) {
  Ok(files.MakeDirectory("a", false), "a");
  for (const std::string path :
       {"", "/", "/a", "../a", "a/../b", "a//b", "a/", ".a", "a/.b", "a/./b", "a b", "a\nb", "a\\b", "ä"}) {
    std::string data;
    std::unique_ptr<ReadFile> reader;
    std::unique_ptr<AppendFile> appender;
    CHECK(!PathIsSafe(path));
    CHECK(!files.ReadAll(path, 10, &data).ok());
    CHECK(!files.OpenRead(path, &reader).ok());
    Is(files.OpenAppend(path, 0, &appender), EINVAL, path.c_str());
    Is(files.Publish(path, "x", false), EINVAL, path.c_str());
    Is(files.MakeDirectory(path, false), EINVAL, path.c_str());
    Is(files.Remove(path), EINVAL, path.c_str());
    if (files.traits().renames) {
      Is(files.Rename("a", path), EINVAL, path.c_str());
      Is(files.Rename(path, "b"), EINVAL, path.c_str());
    }
  }
  CHECK(PathIsSafe("v1/0af/hosts/ff/seg-0000000001.kvs"));
}

inline void KitAppendAndRead(FileSystem& files) {
  Ok(files.MakeDirectory("d", false), "d");
  Buffer data(300'000);
  const bool visible = files.traits().appends_readable;
  auto file = Append(files, "d/f", {data.part(0, 4096), data.part(4096, 8192)});
  std::unique_ptr<AppendFile> second;
  if (visible) Is(files.OpenAppend("d/f", 0, &second), EEXIST, "exclusive");
  std::unique_ptr<ReadFile> early;
  CHECK(files.OpenRead("d/f", &early).ok() == visible);
  Ok(file->Append(std::vector{data.part(12288, 1000), data.part(13288, 1), data.part(13289, 50'000)}),
     "odd sizes");
  Ok(file->Append({}), "nothing");
  Ok(file->Append(std::vector{data.part(63289, 0), data.part(63289, 300'000 - 63289)}), "the rest");
  Ok(file->Sync(), "sync");
  Ok(file->Sync(), "sync again");
  if (visible) {
    Buffer got(4096);
    Ok(early->Read(4096, std::vector{got.all()}), "a reader from before sees what was appended");
    CHECK(std::memcmp(got.data(), data.data() + 4096, 4096) == 0);
  }
  Ok(file->Close(), "close");
  CHECK(!file->Append(std::vector{data.part(0, 1)}).ok());
  CHECK(ReadBack(files, "d/f") == data.text());

  std::unique_ptr<ReadFile> reader;
  Ok(files.OpenRead("d/f", &reader), "open");
  uint64_t bytes = 0;
  Ok(reader->Size(&bytes), "size");
  CHECK(bytes == data.size());
  Buffer got(400'000, 2);
  Ok(reader->Read(0, std::vector{got.part(0, 300'000)}), "all");
  CHECK(std::memcmp(got.data(), data.data(), 300'000) == 0);
  Ok(reader->Read(299'999, std::vector{got.part(1, 1)}), "the last byte");
  CHECK(got.data()[1] == data.data()[299'999]);
  Ok(reader->Read(300'000, {}), "nothing");
  Is(reader->Read(300'000, std::vector{got.part(0, 1)}), IoError::kShort, "behind the end");
  Is(reader->Read(0, std::vector{got.part(0, 300'001)}), IoError::kShort, "over the end");
  Is(reader->Read(294'912, std::vector{got.part(0, 8192)}), IoError::kShort, "over the end, aligned");
  Is(reader->Read(1ull << 40, std::vector{got.part(0, 4096)}), IoError::kShort, "far behind");
  CHECK(!reader->Read(~uint64_t{0} - 4095, std::vector{got.part(0, 4096)}).ok());
  std::string whole;
  Is(files.ReadAll("d/f", 299'999, &whole), EFBIG, "too big");
  Ok(files.ReadAll("d/f", 300'000, &whole), "just fits");
}

// Segments as they are: aligned headers and payloads, tens of MiB, in few calls of many parts.
inline void KitLargeVectors(FileSystem& files) {
  Ok(files.MakeDirectory("d", false), "d");
  Buffer data(24 << 20);
  std::vector<IoVec> parts;
  for (uint64_t at = 0; at < data.size();) {
    const uint64_t bytes = std::min<uint64_t>(parts.size() % 2 == 0 ? 4096 : 64 << 10, data.size() - at);
    parts.push_back(data.part(at, bytes));
    at += bytes;
  }
  auto file = Append(files, "d/f", parts);
  Ok(file->Sync(), "sync");
  Ok(file->Close(), "close");
  Buffer got(data.size(), 2);
  std::vector<IoVec> into;
  for (uint64_t at = 0; at < got.size(); at += 8192) into.push_back(got.part(at, 8192));  // more than IOV_MAX
  std::unique_ptr<ReadFile> reader;
  Ok(files.OpenRead("d/f", &reader), "open");
  Ok(reader->Read(0, into), "read");
  CHECK(std::memcmp(got.data(), data.data(), data.size()) == 0);
  into.push_back(got.part(0, 4096));
  Is(reader->Read(0, into), IoError::kShort, "over the end");
}

// Any offsets, lengths and addresses, against a string.
inline void KitRandomVectors(FileSystem& files) {
  Ok(files.MakeDirectory("d", false), "d");
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 random(seed);
    Buffer data(3 << 20, seed);
    const auto some_bytes = [&](uint64_t most) {
      switch (random() % 4) {
        case 0:
          return std::min<uint64_t>(most, random() % 5000);
        case 1:
          return std::min<uint64_t>(most, 4096 * (random() % 20));
        case 2:
          return std::min<uint64_t>(most, 4096 * (random() % 20) + random() % 3);
        default:
          return std::min<uint64_t>(most, random() % 400'000);
      }
    };
    const std::string path = "d/f" + std::to_string(seed);
    std::unique_ptr<AppendFile> file;
    Ok(files.OpenAppend(path, seed % 2 == 0 ? 0 : 8 << 20, &file), "open");
    std::string model;
    for (int call = 0; call < 6; ++call) {
      std::vector<IoVec> parts;
      for (uint64_t count = random() % 12; count != 0; --count) {
        const uint64_t at = random() % 2 == 0 ? 4096 * (random() % 300) : random() % data.size();
        parts.push_back(data.part(at, some_bytes(data.size() - at)));
        model.append(static_cast<const char*>(parts.back().data), parts.back().bytes);
      }
      Ok(file->Append(parts), "append");
    }
    Ok(file->Sync(), "sync");
    Ok(file->Close(), "close");
    CHECK(ReadBack(files, path) == model);
    std::unique_ptr<ReadFile> reader;
    Ok(files.OpenRead(path, &reader), "open");
    Buffer got(6 << 20, seed + 100);
    for (int call = 0; call < 40; ++call) {
      const uint64_t offset =
          random() % 2 == 0 ? 4096 * (random() % (model.size() / 4096 + 1)) : random() % (model.size() + 1);
      std::vector<IoVec> parts;
      uint64_t left = model.size() - std::min<uint64_t>(offset, model.size());
      uint64_t at = random() % 2 == 0 ? 0 : random() % 4096;
      for (uint64_t count = random() % 8; count != 0; --count) {
        const uint64_t bytes = std::min(some_bytes(left), got.size() - at);
        parts.push_back(got.part(at, bytes));
        left -= bytes;
        at += bytes;
        if (random() % 2 == 0) at = std::min<uint64_t>((at + 4095) / 4096 * 4096, got.size());
      }
      Ok(reader->Read(offset, parts), "read");
      uint64_t from = offset;
      for (const IoVec& part : parts) {
        CHECK(part.bytes == 0 || std::memcmp(part.data, model.data() + from, part.bytes) == 0);
        from += part.bytes;
      }
    }
  }
}

inline void KitPublish(FileSystem& files) {
  Ok(files.MakeDirectory("d", false), "d");
  Ok(files.Publish("d/f", "one", true), "exclusive");
  Is(files.Publish("d/f", "two", true), EEXIST, "exclusive again");
  CHECK(ReadBack(files, "d/f") == "one");
  Ok(files.Publish("d/f", std::string(100'000, 'x'), false), "replace");
  Ok(files.Publish("d/f", "", false), "by nothing");
  CHECK(ReadBack(files, "d/f").empty());
  std::vector<DirEntry> entries;
  Ok(files.List("d", &entries), "list");
  CHECK(entries.size() == 1);  // no temporaries left
}

inline void KitRaces(FileSystem& files) {
  Ok(files.MakeDirectory("d", false), "d");
  // An object store may let the last one win.
  for (int round = 0; files.traits().renames && round < 10; ++round) {
    const std::string path = "d/one" + std::to_string(round);
    std::atomic<int> winners{0};
    std::atomic<int> winner{-1};
    RunAtOnce(4, [&](int i) {
      const IoError error = files.Publish(path, std::to_string(i), true);
      if (error.ok()) {
        ++winners;
        winner = i;
      } else {
        Is(error, EEXIST, "a loser");
      }
    });
    CHECK(winners == 1);
    CHECK(ReadBack(files, path) == std::to_string(winner));
  }
  // Whoever reads while it is replaced sees the old one or the new one, whole.
  Ok(files.Publish("d/lease", std::string(5000, 'a'), false), "publish");
  std::atomic<bool> over{false};
  RunAtOnce(3, [&](int i) {
    if (i == 0) {
      for (int j = 1; j < 40; ++j)
        Ok(files.Publish("d/lease", std::string(5000, 'a' + j % 26), false), "replace");
      over = true;
      return;
    }
    do {
      std::string data;
      const IoError error = files.ReadAll("d/lease", 10'000, &data);
      if (error.not_found()) Fail(__FILE__, __LINE__, "the file was gone for a moment", error.text());
      Ok(error, "read");
      CHECK(data.size() == 5000 && data.find_first_not_of(data[0]) == std::string::npos);
    } while (!over);
  });
  RunAtOnce(4, [&](int) { Ok(files.MakeDirectory("x/y/z", false), "parents at once"); });
  if (!files.traits().renames) return;
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> winners{0};
    const std::string name = "dead" + std::to_string(round);
    Ok(files.MakeDirectory(name, false), "a dead host");
    Ok(files.Publish(name + "/lease", "x", false), "its lease");
    RunAtOnce(4, [&](int i) {
      const IoError error = files.Rename(name, name + "-of-" + std::to_string(i));
      if (error.ok()) {
        ++winners;
      } else {
        Is(error, ENOENT, "a loser");
      }
    });
    CHECK(winners == 1);
    std::atomic<int> made{0};
    RunAtOnce(4, [&](int) { made += files.MakeDirectory(name, true).ok() ? 1 : 0; });
    CHECK(made == 1);
  }
}

inline void KitRename(FileSystem& files) {
  if (!files.traits().renames) {
    Ok(files.Publish("a", "x", false), "publish");
    CHECK(!files.Rename("a", "b").ok());
    return;
  }
  Ok(files.MakeDirectory("a/b", false), "a");
  Ok(files.MakeDirectory("c", false), "c");
  Ok(files.Publish("a/b/f", "x", false), "f");
  Ok(files.Publish("c/g", "y", false), "g");
  Is(files.Rename("a/b/f", "c/g"), EEXIST, "onto a file");
  Is(files.Rename("a/b", "c"), EEXIST, "onto a directory");
  CHECK(ReadBack(files, "c/g") == "y");
  Is(files.Rename("a/none", "c/h"), ENOENT, "nothing");
  CHECK(!files.Rename("a", "a/b/c").ok());
  std::unique_ptr<ReadFile> reader;
  Ok(files.OpenRead("a/b/f", &reader), "open");
  Ok(files.Rename("a/b/f", "c/f"), "a file");
  Ok(files.Rename("c/f", "a/b/f"), "and back");
  Ok(files.Rename("a/b", "c/b"), "a directory");
  CHECK(ReadBack(files, "c/b/f") == "x");
  std::string data;
  Is(files.ReadAll("a/b/f", 10, &data), ENOENT, "moved");
  // Open files stay what they were, moved or removed.
  Ok(files.Remove("c/b/f"), "remove");
  uint8_t byte = 0;
  Ok(reader->Read(0, std::vector{IoVec{&byte, 1}}), "an open file that was removed");
  CHECK(byte == 'x');
}

inline void KitAbandoned(FileSystem& files) {
  Ok(files.MakeDirectory("d", false), "d");
  Buffer data(8192);
  Append(files, "d/f", {data.all()}).reset();
  std::unique_ptr<ReadFile> reader;
  const IoError error = files.OpenRead("d/f", &reader);
  if (!files.traits().appends_readable) {
    Is(error, ENOENT, "an abandoned object is nothing");
    return;
  }
  Ok(error, "what was appended is there");
  uint64_t bytes = 0;
  Ok(reader->Size(&bytes), "size");
  CHECK(bytes == 8192);
}

inline void KitManyReaders(FileSystem& files) {
  Ok(files.MakeDirectory("d", false), "d");
  Buffer data(4 << 20);
  auto file = Append(files, "d/f", {data.all()});
  Ok(file->Close(), "close");
  std::unique_ptr<ReadFile> reader;
  Ok(files.OpenRead("d/f", &reader), "open");
  RunAtOnce(4, [&](int i) {
    Buffer got(2 << 20, 9);
    for (int j = 0; j < 10; ++j) {
      const uint64_t offset = static_cast<uint64_t>(i * 4096 + j * 65536 + j % 2);
      Ok(reader->Read(offset, std::vector{got.all()}), "read");
      CHECK(std::memcmp(got.data(), data.data() + offset, got.size()) == 0);
    }
  });
}

inline void RunFileSystemKit(const char* name, const MakeFiles& make) {
  const std::pair<const char*, void (*)(FileSystem&)> checks[] = {
      {"directories", KitDirectories},
      {"unsafe paths", KitUnsafePaths},
      {"append and read", KitAppendAndRead},
      {"large vectors", KitLargeVectors},
      {"random vectors", KitRandomVectors},
      {"publish", KitPublish},
      {"races", KitRaces},
      {"rename", KitRename},
      {"abandoned", KitAbandoned},
      {"many readers", KitManyReaders},
  };
  for (const auto& [what, check] : checks) {
    std::fprintf(stderr, "  %s: %s\n", name, what);
    check(*make());
  }
}

}  // namespace tpu_sync_native::testing
