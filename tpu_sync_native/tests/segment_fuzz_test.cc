// Fuzzes the parsers of the storage format: mutations of a kept corpus (tests/corpus), the same ones in every
// run, or for KVTIER_FUZZ_SECONDS from a seed of the clock. A failure writes its input to fuzz-failure.bin in
// the working directory; put it into the corpus under a name that says what it is, and it is tried first ever
// after. LLVMFuzzerTestOneInput is libFuzzer's door: clang++ -fsanitize=fuzzer,address -DKVTIER_LIBFUZZER.
#include "segment_fuzz.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  tpu_sync_native::testing::FuzzOne({reinterpret_cast<const char*>(data), bytes});
  return 0;
}

namespace tpu_sync_native::testing {
namespace {

constexpr int kIterations = 200'000;
constexpr size_t kInputBytesMax = 256 << 10;

std::string current;  // what is being tried, for the death of this process

void KeepFailure() {
  std::ofstream("fuzz-failure.bin", std::ios::binary) << current;
  std::fprintf(stderr, "the input is in fuzz-failure.bin, %zu bytes\n", current.size());
}

void Try(std::string input) {
  current = std::move(input);
  LLVMFuzzerTestOneInput(AsBytes(current).data(), current.size());
}

std::filesystem::path CorpusFolder() { return std::filesystem::path(__FILE__).parent_path() / "corpus"; }

std::vector<std::string> Corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(CorpusFolder())) {
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

uint64_t Interesting(Random& random) {
  constexpr uint64_t kValues[] = {
      0,          1,          2,          15,    16,        64,          65,         95,        96,
      4095,       4096,       4097,       8192,  65'535,    65'536,      262'144,    1u << 31,  0xffffffff,
      1ull << 32, 1ull << 40, 1ull << 63, ~0ull, ~0ull - 1, ~0ull << 12, 0x7fffffff, ~0ull / 96};
  const uint64_t value = kValues[random() % std::size(kValues)];
  return random() % 4 == 0 ? value + random() % 3 - 1 : value;
}

// Most changes go where the fields are: the first bytes of a unit.
size_t Place(Random& random, const std::string& input) {
  const size_t anywhere = random() % input.size();
  if (random() % 4 == 0) return anywhere;
  return std::min(1 + (anywhere - anywhere % kStorageUnit) + random() % 192, input.size() - 1);
}

void Mutate(Random& random, const std::vector<std::string>& corpus, std::string* input) {
  if (input->size() < 2) *input += RandomBytes(random, 64);
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
      const size_t field = 1 + (at - at % 4);  // fields are aligned in the file, which begins at byte 1
      const size_t bytes = random() % 2 == 0 ? 4 : 8;
      if (field + bytes <= input->size()) std::memcpy(input->data() + field, &value, bytes);
      break;
    }
    case 4:
      input->resize(1 + random() % input->size());
      break;
    case 5:
      input->resize(std::min(input->size() + random() % 9000, kInputBytesMax));
      break;
    case 6: {  // units of another file
      const std::string& other = corpus[random() % corpus.size()];
      if (other.size() <= kStorageUnit) break;
      const size_t from = 1 + (random() % (other.size() / kStorageUnit)) * kStorageUnit;
      const size_t to = 1 + (random() % (input->size() / kStorageUnit + 1)) * kStorageUnit;
      const std::string part = other.substr(from, kStorageUnit);
      if (to + part.size() > kInputBytesMax) break;
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

TEST(CorpusIsThere) {
  CHECK(Corpus().size() >= 8);
  for (const std::string& input : Corpus()) Try(input);
}

TEST(Mutations) {
  const std::vector<std::string> corpus = Corpus();
  const char* const seconds = std::getenv("KVTIER_FUZZ_SECONDS");
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 60);
  const uint64_t seed =
      seconds != nullptr ? static_cast<uint64_t>(Clock::now().time_since_epoch().count()) : 1;
  std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  uint64_t iterations = 0;
  for (; Clock::now() < end && (seconds != nullptr || iterations < kIterations); ++iterations) {
    std::string input = corpus[random() % corpus.size()];
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) Mutate(random, corpus, &input);
    if (input.size() > 1 && random() % 4 != 0) FixChecksums(&input);
    Try(std::move(input));
  }
  std::fprintf(stderr, "%llu inputs\n", static_cast<unsigned long long>(iterations));
}

}  // namespace
}  // namespace tpu_sync_native::testing

#if !defined(KVTIER_LIBFUZZER)
int main(int argc, char** argv) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(&tpu_sync_native::testing::KeepFailure);
#endif
  std::signal(SIGABRT, [](int) { tpu_sync_native::testing::KeepFailure(); });
  return tpu_sync_native::testing::RunTests(argc, argv);
}
#endif
