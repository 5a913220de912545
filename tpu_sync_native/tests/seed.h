// Where the randomness of a test comes from: one seed for a run, KVTIER_SEED or drawn. Whoever asks for it
// has its value, and the command that runs the same again, printed at once (a sanitizer may end the process)
// and once more when a check fails.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "base/mix.h"

namespace tpu_sync_native::testing {

// The program and its test that runs now, and the seed it has asked for.
struct Running {
  std::string program, test, replay;
};

inline Running& Now() {
  static Running running;
  return running;
}

inline void StartTest(const char* program, const char* test) { Now() = {program, test, ""}; }

inline uint64_t Announce(uint64_t seed) {
  Running& running = Now();
  std::error_code error;
  const std::string path = std::filesystem::absolute(running.program, error).string();
  running.replay = "KVTIER_SEED=" + std::to_string(seed) + " " + (error ? running.program : path) +
                   (running.test.empty() ? "" : " " + running.test);
  std::fprintf(stderr, "        seed %llu; again: %s\n", static_cast<unsigned long long>(seed),
               running.replay.c_str());
  return seed;
}

inline uint64_t WantedSeed(uint64_t otherwise) {
  const char* const wanted = std::getenv("KVTIER_SEED");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 0) : otherwise;
}

inline uint64_t RunSeed() { return Announce(WantedSeed(std::random_device{}())); }
// The same in every run, unless another one is wanted.
inline uint64_t FixedSeed(uint64_t fixed) { return Announce(WantedSeed(fixed)); }

// The i-th of a run that needs several.
inline uint64_t SeedOf(uint64_t run_seed, uint64_t i) {
  return i == 0 ? run_seed : Mix(run_seed + i, 0x9e3779b97f4a7c15ull);
}

}  // namespace tpu_sync_native::testing
