// What tests of files share: aligned memory with a pattern, checks that print the error, threads at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fs/file_system.h"

namespace tpu_sync_native::testing {

// Page-aligned memory, filled with a pattern of its own.
class Buffer {
 public:
  explicit Buffer(uint64_t bytes, uint64_t seed = 1)
      : bytes_(bytes),
        data_(static_cast<uint8_t*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096))) {
    std::mt19937_64 random(seed);
    for (uint64_t i = 0; i < bytes; i += 8) {
      const uint64_t word = random();
      std::memcpy(data_ + i, &word, std::min<uint64_t>(8, bytes - i));
    }
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* data() { return data_; }
  uint64_t size() const { return bytes_; }
  IoVec part(uint64_t offset, uint64_t bytes) { return {data_ + offset, bytes}; }
  IoVec all() { return {data_, bytes_}; }
  std::string text() const { return {reinterpret_cast<const char*>(data_), bytes_}; }

 private:
  const uint64_t bytes_;
  uint8_t* const data_;
};

inline void Ok(const IoError& error, const char* what) {
  if (!error.ok()) Fail(__FILE__, __LINE__, what, error.text());
}
inline void Is(const IoError& error, int code, const char* what) {
  if (error.code != code) Fail(__FILE__, __LINE__, what, error.text());
}

inline std::unique_ptr<AppendFile> Append(FileSystem& files, const std::string& path,
                                          std::vector<IoVec> parts) {
  std::unique_ptr<AppendFile> file;
  Ok(files.OpenAppend(path, 1 << 20, &file), path.c_str());
  Ok(file->Append(parts), path.c_str());
  return file;
}

inline std::string ReadBack(FileSystem& files, const std::string& path) {
  std::string data;
  Ok(files.ReadAll(path, 1ull << 30, &data), path.c_str());
  return data;
}

inline void RunAtOnce(int threads, const std::function<void(int)>& run) {
  std::atomic<int> ready{0};
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      ++ready;
      while (ready < threads) std::this_thread::yield();
      run(i);
    });
  }
  for (std::thread& thread : all) thread.join();
}

}  // namespace tpu_sync_native::testing
