// Whether a codec pays: the arithmetic, what is found out of chunks, and a tier that finds it out by itself.
#include "storage/codec_choice.h"

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "fake_files.h"
#include "hooked_files.h"
#include "segment/payload_codec.h"
#include "segment/scan.h"
#include "storage/codec_trial.h"
#include "storage/medium_speed.h"
#include "tier_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr double kMB = 1e6, kGB = 1e9;
constexpr MediumSpeeds kSlow{1 * kMB, 1 * kMB}, kFast{1e6 * kGB, 1e6 * kGB};

struct Case {
  double share, encode_gb_s, decode_gb_s;
  MediumSpeeds medium;
  CodecCost cost;
  bool pays;
};

TEST(CostAndVerdict) {
  const Case cases[] = {
      {0.77, 0.59, 3.0, {2 * kGB, 2 * kGB}, {4.16, 1.437}, false},         // numbers of a cache, a fast disk
      {0.77, 0.59, 3.0, {0.05 * kGB, 0.05 * kGB}, {0.855, 0.787}, true},   // a slow one
      {0.84, 0.27, 3.0, {0.05 * kGB, 0.05 * kGB}, {1.025, 0.857}, false},  // writes do not win
      {0.40, 1.0, 0.1, {0.05 * kGB, 0.05 * kGB}, {0.45, 0.9}, true},       // exactly the margin
      {0.40, 1.0, 0.1, {0.05 * kGB, 0.06 * kGB}, {0.45, 1.0}, false},      // reads do not win
      {0.40, 1.0, 2.0, {0.1 * kGB, 2 * kGB}, {0.5, 1.4}, false},           // reads come from a cache
      {0.40, 1.0, 2.0, {0.1 * kGB, 0}, {0.5, 0.45}, true},                 // nothing was read yet
      {1.00, 12.0, 100, {0.01 * kGB, 0.01 * kGB}, {1.0, 1.0}, false},      // noise
  };
  for (const Case& wanted : cases) {
    const CodecSpeed codec{wanted.share, 1 / (wanted.encode_gb_s * kGB), 1 / (wanted.decode_gb_s * kGB)};
    const CodecCost cost = CostOf(codec, wanted.medium);
    CHECK(std::abs(cost.write - wanted.cost.write) < 0.002);
    CHECK(std::abs(cost.read - wanted.cost.read) < 0.002);
    CHECK(Pays({std::round(cost.write * 1000) / 1000, std::round(cost.read * 1000) / 1000}) == wanted.pays);
  }
}

TEST(RecentIoSaysHowFastTheMediumIs) {
  MediumSpeed speed;
  CHECK(speed.bytes_per_s() == 0);
  speed.Add(1000, 0);
  speed.Add(0, 1000);
  CHECK(speed.bytes_per_s() == 0);
  speed.Add(2 << 20, kNsPerS);
  CHECK(std::abs(speed.bytes_per_s() - (2 << 20)) < 1);
  for (int i = 0; i < 20; ++i) speed.Add(1 << 30, kNsPerS);
  CHECK(speed.bytes_per_s() > 0.99 * (1 << 30));
}

// 16-bit numbers with one exponent: what the shuffles are for, either of them.
std::string Numbers(uint64_t bytes) {
  std::mt19937_64 random(7);
  std::string chunk(bytes, '?');
  for (uint64_t i = 0; i + 1 < bytes; i += 2) chunk[i] = static_cast<char>(random());
  return chunk;
}

bool Shuffles(Codec codec) { return codec == Codec::kLz4Shuffle2 || codec == Codec::kLz4Shuffle4; }

std::string Noise(uint64_t bytes) {
  std::mt19937_64 random(8);
  std::string chunk(bytes, '\0');
  for (char& byte : chunk) byte = static_cast<char>(random());
  return chunk;
}

CodecTrial::Choice Tried(CodecTrial& trial, const std::string& chunk, size_t count,
                         const MediumSpeeds& medium) {
  const std::vector<const uint8_t*> chunks(count, reinterpret_cast<const uint8_t*>(chunk.data()));
  trial.Look(chunks, chunk.size(), medium);
  const CodecTrial::Choice choice = trial.choice();
  CHECK(choice.codec == trial.codec());
  return choice;
}

TEST(WhatShrinksOnASlowMediumIsCompressed) {
  CHECK(CodecUnavailable(Codec::kLz4).empty());
  for (const uint64_t bytes : {64 << 10, 1 << 20, 5'000'001}) {
    CodecTrial trial;
    const CodecTrial::Choice choice = Tried(trial, Numbers(bytes), 8, kSlow);
    CHECK(Shuffles(choice.codec));
    CHECK(choice.tried == choice.codec);
    CHECK(choice.share > 0.45 && choice.share < 0.6);
    CHECK(choice.cost.write > choice.share && choice.cost.read > choice.share);
    CHECK(Pays(choice.cost));
  }
}

TEST(OtherwiseItIsNot) {
  CodecTrial fast, noise, small;
  CodecTrial::Choice choice = Tried(fast, Numbers(1 << 20), 8, kFast);
  CHECK(choice.codec == Codec::kRaw);
  CHECK(choice.tried != Codec::kRaw && !Pays(choice.cost));
  choice = Tried(noise, Noise(1 << 20), 8, kSlow);
  CHECK(choice.codec == Codec::kRaw);
  CHECK(choice.tried != Codec::kRaw && choice.share == 1);
  // A record takes whole units: there is nothing to win.
  choice = Tried(small, Numbers(4096), 8, kSlow);
  CHECK(choice.codec == Codec::kRaw);
  CHECK(choice.share == 1);
}

TEST(NothingIsDecidedBeforeEnoughIsKnown) {
  const std::string chunk = Numbers(64 << 10);
  CodecTrial trial;
  CHECK(Tried(trial, chunk, 7, kSlow).tried == Codec::kRaw);
  CHECK(Tried(trial, chunk, 1, {0, 1 * kMB}).tried == Codec::kRaw);  // no write was measured
  CHECK(Shuffles(Tried(trial, chunk, 0, {1 * kMB, 0}).codec));
  // The first reads that were measured count; how fast they are later, the next look asks.
  CHECK(Tried(trial, chunk, 1, {1 * kMB, 1e6 * kGB}).codec == Codec::kRaw);
  CHECK(Tried(trial, chunk, 1, kSlow).codec == Codec::kRaw);
}

TEST(ALaterLookMayFindOtherwise) {
  const std::string numbers = Numbers(64 << 10), noise = Noise(64 << 10);
  CodecTrial trial;
  CHECK(Shuffles(Tried(trial, numbers, 8, kSlow).codec));
  uint64_t seen = 8;
  for (; seen + 64 < CodecTrial::kChunksBetweenLooks; seen += 64)
    CHECK(Shuffles(Tried(trial, noise, 64, kSlow).codec));
  Tried(trial, noise, CodecTrial::kChunksBetweenLooks - seen, kSlow);
  // Until it has seen enough, what was found stands.
  CHECK(Shuffles(Tried(trial, noise, 7, kSlow).codec));
  CHECK(Tried(trial, noise, 1, kSlow).codec == Codec::kRaw);
}

// So slow that a sanitizer's lz4 is fast.
std::shared_ptr<FileSystem> SlowFiles(FakeFiles& fake) {
  FileHooks hooks;
  hooks.before = [](const FileCall& call) {
    if (call.op == kOpAppend || call.op == kOpRead)
      std::this_thread::sleep_for(std::chrono::microseconds(call.bytes));
    return FileVerdict{};
  };
  return std::make_shared<HookedFiles>(fake.files(), std::move(hooks));
}

TEST(ATierFindsItOut) {
  FakeFiles fake;
  TierHost host(SlowFiles(fake));
  host.Start(TierHost::kMeta, std::nullopt);
  const auto choice = [&] { return host.tier->Namespaces().front().codec; };
  CHECK(host.Put(0, 20) == 20);
  CHECK(host.Flush());
  CHECK(choice().codec == Codec::kRaw);  // not before it knows the medium
  uint64_t next = 20;
  while (choice().codec == Codec::kRaw && next < 200) {
    host.Put(next++, 1);
    CHECK(host.Flush());
  }
  CHECK(choice().codec == Codec::kLz4);
  CHECK(choice().share == 0.5);  // one unit instead of two
  CHECK(host.Put(1000, 20) == 20);
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Get(0, static_cast<uint32_t>(next)) == next);
  CHECK(host.Get(1000, 20) == 20);
  CHECK(host.tier->Stop(10'000));
  // What was written as it was found, stays as it is.
  std::map<uint32_t, uint32_t> records;
  for (const std::string& path : fake.memory->FileNames()) {
    if (!path.ends_with(".kvs")) continue;
    ScanResult scan;
    CHECK(ScanSegment(*fake.files(), path, true, &scan).ok());
    for (const IndexEntry& entry : scan.entries) ++records[entry.codec];
  }
  CHECK(records[0] >= 20 && records[1] >= 20);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
