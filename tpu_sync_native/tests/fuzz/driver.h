// What drives a fuzz target: its corpus (fuzz/corpus/<name>), then mutations of that: the same ones in every
// run of continuous integration, others with a KVTIER_SEED, and for KVTIER_FUZZ_SECONDS as many as there is
// time for. A failure writes its input to fuzz-failure.bin in the working directory; put it into the corpus
// under a name that says what it is, and it is tried first ever after. LLVMFuzzerTestOneInput is libFuzzer's
// door: clang++ -fsanitize=fuzzer,address -DKVTIER_LIBFUZZER.
//
// A target is one file: a Target, KVTIER_FUZZ_MAIN(target), and its line in make_corpus.py.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "seed.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// As CHECK, but by abort, so that a fuzzer sees it and keeps the input.
#define HOLDS(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

namespace tpu_sync_native::testing {

struct Target {
  const char* name;               // of its folder in fuzz/corpus
  void (*one)(std::string_view);  // tries one input; what must hold is stated with HOLDS
  void (*repair)(std::string*);   // makes checksums and the like right again, most of the times; may be null
  size_t begins = 0;              // bytes in front of what is structured, for instance a selector
  size_t unit = 64;               // structures begin at multiples of this, behind `begins`
  size_t fields = 64;             // and have their fields in so many first bytes
  uint64_t iterations = 20'000;   // without KVTIER_FUZZ_SECONDS
  size_t input_bytes_max = 256 << 10;
};

using FuzzRandom = std::mt19937_64;

class Fuzzer {
 public:
  explicit Fuzzer(const Target& target) : target_(target), corpus_(Load()) {}

  size_t corpus_size() const { return corpus_.size(); }
  void TryCorpus() {
    for (const std::string& input : corpus_) Try(input);
  }

  void TryMutations() {
    using Clock = std::chrono::steady_clock;
    const char* const seconds = std::getenv("KVTIER_FUZZ_SECONDS");
    const uint64_t seed = seconds != nullptr ? RunSeed() : FixedSeed(1);
    const auto end = Clock::now() + std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 60);
    FuzzRandom random(seed);
    uint64_t tried = 0;
    for (; Clock::now() < end && (seconds != nullptr || tried < target_.iterations); ++tried) {
      std::string input = corpus_[random() % corpus_.size()];
      for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) Mutate(random, &input);
      if (target_.repair != nullptr && input.size() > target_.begins && random() % 4 != 0)
        target_.repair(&input);
      Try(std::move(input));
    }
    std::fprintf(stderr, "        %s: %llu inputs\n", target_.name, static_cast<unsigned long long>(tried));
  }

  static void KeepFailure() {
    std::ofstream("fuzz-failure.bin", std::ios::binary) << Current();
    std::fprintf(stderr, "the input is in fuzz-failure.bin, %zu bytes\n", Current().size());
  }

 private:
  // What is being tried, for the death of this process.
  static std::string& Current() {
    static std::string current;
    return current;
  }

  void Try(std::string input) {
    Current() = std::move(input);
    target_.one(Current());
  }

  std::vector<std::string> Load() const {
    const auto folder = std::filesystem::path(KVTIER_FUZZ_CORPUS) / target_.name;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".bin") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    std::vector<std::string> inputs;
    for (const auto& path : paths) {
      std::ifstream file(path, std::ios::binary);
      inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return inputs;
  }

  static uint64_t Interesting(FuzzRandom& random) {
    constexpr uint64_t kValues[] = {
        0,          1,          2,          15,    16,        64,          65,         95,        96,
        4095,       4096,       4097,       8192,  65'535,    65'536,      262'144,    1u << 31,  0xffffffff,
        1ull << 32, 1ull << 40, 1ull << 63, ~0ull, ~0ull - 1, ~0ull << 12, 0x7fffffff, ~0ull / 96};
    const uint64_t value = kValues[random() % std::size(kValues)];
    return random() % 4 == 0 ? value + random() % 3 - 1 : value;
  }

  static std::string Noise(FuzzRandom& random, size_t bytes) {
    std::string noise(bytes, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    return noise;
  }

  // Most changes go where the fields are.
  size_t Place(FuzzRandom& random, const std::string& input) const {
    const size_t anywhere = random() % input.size();
    if (random() % 4 == 0) return anywhere;
    return std::min(target_.begins + (anywhere - anywhere % target_.unit) + random() % target_.fields,
                    input.size() - 1);
  }

  void Mutate(FuzzRandom& random, std::string* input) const {
    if (input->size() < 2) *input += Noise(random, 64);
    const size_t at = Place(random, *input);
    switch (random() % 9) {
      case 0:
        (*input)[at] = static_cast<char>((*input)[at] ^ (1 << (random() % 8)));
        break;
      case 1:
        (*input)[at] = static_cast<char>(random());
        break;
      case 2:
      case 3: {
        const uint64_t value = Interesting(random);
        const size_t field = target_.begins + (at - at % 4);
        const size_t bytes = random() % 2 == 0 ? 4 : 8;
        if (field + bytes <= input->size()) std::memcpy(input->data() + field, &value, bytes);
        break;
      }
      case 4:
        input->resize(1 + random() % input->size());
        break;
      case 5:
        input->resize(std::min(input->size() + random() % 9000, target_.input_bytes_max));
        break;
      case 6: {  // units of another input
        const std::string& other = corpus_[random() % corpus_.size()];
        if (other.size() <= target_.begins + target_.unit) break;
        const size_t from =
            target_.begins + (random() % ((other.size() - target_.begins) / target_.unit)) * target_.unit;
        const size_t to = target_.begins + (random() % (input->size() / target_.unit + 1)) * target_.unit;
        const std::string part = other.substr(from, target_.unit);
        if (to + part.size() > target_.input_bytes_max) break;
        input->resize(std::max(input->size(), to + part.size()));
        input->replace(to, part.size(), part);
        break;
      }
      case 7: {  // a part of its own, elsewhere
        const size_t from = Place(random, *input);
        const std::string part = input->substr(from, 1 + random() % 128);
        input->replace(at, std::min(part.size(), input->size() - at), part);
        break;
      }
      default:
        input->erase(at, 1 + random() % 128);
        break;
    }
  }

  const Target& target_;
  const std::vector<std::string> corpus_;
};

inline int RunFuzzer(int argc, char** argv, const Target& target) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(&Fuzzer::KeepFailure);
#endif
  std::signal(SIGABRT, [](int) { Fuzzer::KeepFailure(); });
  (void)argc;
  StartTest(argv[0], "");
  Fuzzer fuzzer(target);
  CHECK(fuzzer.corpus_size() >= 8);
  fuzzer.TryCorpus();
  fuzzer.TryMutations();
  return 0;
}

}  // namespace tpu_sync_native::testing

#if defined(KVTIER_LIBFUZZER)
#define KVTIER_FUZZ_MAIN(target)
#else
#define KVTIER_FUZZ_MAIN(target) \
  int main(int argc, char** argv) { return ::tpu_sync_native::testing::RunFuzzer(argc, argv, target); }
#endif
#define KVTIER_FUZZ(target)                                                     \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {    \
    (target).one(std::string_view(reinterpret_cast<const char*>(data), bytes)); \
    return 0;                                                                   \
  }                                                                             \
  KVTIER_FUZZ_MAIN(target)
