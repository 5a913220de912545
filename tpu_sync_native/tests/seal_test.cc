// Seals: what was written with the key comes back, and nothing else does, whatever is put in its place.
#include "segment/seal.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "read_fixture.h"
#include "segment/crypto_library.h"
#include "segment/payload_codec.h"
#include "storage/record_batch.h"
#include "storage/segment_reader.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kChunkBytes = 3 * kStorageUnit - 100;  // not a whole number of units
constexpr Seal kSeals[] = {Seal::kMac, Seal::kEncrypt};

std::shared_ptr<const Sealer> MakeSealer(Seal seal, char key = 'k') {
  std::string why;
  auto sealer = Sealer::Make(std::string(Sealer::kKeyBytes, key), seal, &why);
  if (sealer == nullptr) Fail(__FILE__, __LINE__, "Sealer::Make", why);
  return sealer;
}

std::string KeyOf(uint64_t i) { return "key-" + std::to_string(1'000'000'000'000 + i); }

// Words that repeat: lz4 makes them smaller.
std::string Compressible(uint64_t i) {
  std::string chunk;
  while (chunk.size() < kChunkBytes) chunk += "chunk " + std::to_string(i) + " says the same again; ";
  chunk.resize(kChunkBytes);
  return chunk;
}

MadeSegment Sealed(const SegmentIdentity& identity, std::shared_ptr<const Sealer> sealer, size_t count,
                   Codec codec = Codec::kRaw, const std::string& first = "") {
  MadeSegment made(identity);
  RecordBatch batch(kChunkBytes, codec, 1 << 20, 1 << 20, std::move(sealer), identity.namespace_id);
  std::vector<std::string> chunks;
  for (size_t i = 0; i < count; ++i) chunks.push_back(i == 0 && !first.empty() ? first : Compressible(i));
  for (size_t i = 0; i < count; ++i) {
    CHECK(batch.Add(KeyOf(i), reinterpret_cast<const uint8_t*>(chunks[i].data())));
  }
  std::vector<IoVec> parts;
  CHECK(batch.Place(identity, made.file.size(), &parts, &made.entries));
  for (const IoVec& part : parts) made.file.append(static_cast<const char*>(part.data), part.bytes);
  return made;
}

struct FreeAligned {
  void operator()(uint8_t* data) const { std::free(data); }
};

ReadOptions OfChunks() {
  ReadOptions options;
  options.chunk_bytes = kChunkBytes;
  return options;
}

// One that knows `sealer`; null: none.
struct World : ReadFixture {
  explicit World(std::shared_ptr<const Sealer> sealer) : ReadFixture(OfChunks()) {
    context->options.sealer = std::move(sealer);
  }
  // Reads one record of a file that says what `made` says.
  ReadVerdict Read(const MadeSegment& made, size_t record, std::string* chunk = nullptr) {
    const std::shared_ptr<Segment> segment = Publish(made);
    const IndexEntry& entry = made.entries[record];
    const std::unique_ptr<uint8_t, FreeAligned> slot(
        static_cast<uint8_t*>(std::aligned_alloc(kStorageUnit, RoundToUnit(kChunkBytes))));
    const std::string key(tpu_sync_native::KeyOf(entry));
    const WantedChunk wanted{entry.offset, uint64_t{entry.stored_units} * kStorageUnit, key, slot.get()};
    ReadVerdict verdict = ReadVerdict::kIo;
    ReadChunks(*context, *segment, {&wanted, 1}, [&](size_t, ReadVerdict answer) { verdict = answer; });
    if (chunk != nullptr) chunk->assign(reinterpret_cast<char*>(slot.get()), kChunkBytes);
    context->segments->DropFile(segment->id);
    for (const IndexEntry& each : made.entries) {
      context->catalog->Remove(CatalogKeyOf(made.identity, each), WhereOf(*segment, each));
    }
    context->segments->Forget(segment->id);
    return verdict;
  }
};

RecordHeader HeaderOf(const MadeSegment& made, size_t record) {
  RecordHeader header;
  std::memcpy(&header, made.file.data() + made.entries[record].offset, sizeof(header));
  return header;
}

// As somebody writes it who has no key: the checksum of the header is right again.
void PutHeader(MadeSegment& made, size_t record, RecordHeader header) {
  uint8_t* const unit = MutableBytes(made.file) + made.entries[record].offset;
  header.header_crc = 0;
  std::memcpy(unit, &header, sizeof(header));
  header.header_crc = Crc32c(0, unit, kRecordHeaderBytes);
  std::memcpy(unit, &header, sizeof(header));
}

TEST(WhatIsSealedComesBack) {
  for (const Seal seal : kSeals) {
    for (const Codec codec : {Codec::kRaw, Codec::kLz4, Codec::kLz4Shuffle2}) {
      World world(MakeSealer(seal));
      const MadeSegment made = Sealed(MakeIdentity(kChunkBytes), MakeSealer(seal), 4, codec);
      CHECK(HeaderOf(made, 0).codec == static_cast<uint32_t>(codec));
      for (size_t i = 0; i < 4; ++i) {
        std::string chunk;
        CHECK(world.Read(made, i, &chunk) == ReadVerdict::kOk);
        CHECK(chunk == Compressible(i));
      }
      const bool readable = made.file.find("says the same again") != std::string::npos;
      if (codec == Codec::kRaw || seal == Seal::kEncrypt) CHECK(readable == (seal == Seal::kMac));
      CHECK(Scan(made.file, true).stopped.empty());  // without a key, as one that adopts it does
    }
  }
}

TEST(BothKindsAreReadByEither) {
  for (const Seal seal : kSeals) {
    World world(MakeSealer(seal == Seal::kMac ? Seal::kEncrypt : Seal::kMac));
    std::string chunk;
    CHECK(world.Read(Sealed(MakeIdentity(kChunkBytes), MakeSealer(seal), 1), 0, &chunk) == ReadVerdict::kOk);
    CHECK(chunk == Compressible(0));
  }
}

TEST(NoByteOfAHeaderCanBeChanged) {
  for (const Seal seal : kSeals) {
    World world(MakeSealer(seal));
    const MadeSegment made = Sealed(MakeIdentity(kChunkBytes), MakeSealer(seal), 1);
    for (size_t at = 0; at < kRecordHeaderBytes; ++at) {
      if (at >= 12 && at < 16) continue;  // the checksum itself, which is made anew
      MadeSegment forged = made;
      forged.file[made.entries[0].offset + at] ^= 1;
      PutHeader(forged, 0, HeaderOf(forged, 0));
      if (world.Read(forged, 0) == ReadVerdict::kOk) {
        Fail(__FILE__, __LINE__, "a changed header was believed", std::to_string(at));
      }
    }
  }
}

TEST(NoByteOfAPayloadCanBeChanged) {
  for (const Seal seal : kSeals) {
    const auto sealer = MakeSealer(seal);
    World world(sealer);
    const MadeSegment made = Sealed(MakeIdentity(kChunkBytes), sealer, 1);
    const RecordHeader header = HeaderOf(made, 0);
    const size_t begin = made.entries[0].offset + kStorageUnit;
    const std::string stored = made.file.substr(begin, header.stored_bytes);
    std::string opened = stored;
    CHECK(sealer->OpenPayload(header, MutableBytes(opened)));
    CHECK(opened == Compressible(0));
    for (size_t at = 0; at < stored.size(); at += 97) {
      // A checksum can be met by other bytes: the tag alone must find it.
      std::string changed = stored;
      changed[at] ^= 4;
      CHECK(!sealer->OpenPayload(header, MutableBytes(changed)));
      // And with all checksums made anew.
      MadeSegment forged = made;
      forged.file[begin + at] ^= 4;
      RecordHeader with_crc = header;
      with_crc.payload_crc = Crc32c(0, forged.file.data() + begin, header.stored_bytes);
      PutHeader(forged, 0, with_crc);
      CHECK(world.Read(forged, 0) == ReadVerdict::kCorrupt);
    }
  }
}

TEST(WhatOthersPlantIsAMiss) {
  for (const Seal seal : kSeals) {
    World world(MakeSealer(seal));
    const SegmentIdentity identity = MakeIdentity(kChunkBytes);
    MadeSegment plain(identity);
    plain.Add(KeyOf(0), Compressible(0));
    CHECK(world.Read(plain, 0) == ReadVerdict::kCorrupt);
    CHECK(world.Read(Sealed(identity, MakeSealer(seal, 'x'), 1), 0) == ReadVerdict::kCorrupt);
    CHECK(world.Read(Sealed(identity, MakeSealer(seal), 1), 0) == ReadVerdict::kOk);
  }
}

// Each field of the place is changed back to what it should be where the record now lies.
TEST(ARecordHoldsAtItsOwnPlaceAlone) {
  for (const Seal seal : kSeals) {
    World world(MakeSealer(seal));
    const SegmentIdentity identity = MakeIdentity(kChunkBytes);
    SegmentIdentity others[4] = {identity, identity, identity, identity};
    others[0].namespace_id[0] ^= 1;
    others[1].host_id[0] ^= 1;
    others[2].number += 1;
    others[3].epoch += 1;
    for (const SegmentIdentity& other : others) {
      MadeSegment moved = Sealed(other, MakeSealer(seal), 1);
      RecordHeader header = HeaderOf(moved, 0);
      std::memcpy(header.namespace_id, identity.namespace_id, 16);
      std::memcpy(header.host_id, identity.host_id, 16);
      header.segment = identity.number;
      header.epoch = identity.epoch;
      moved.identity = identity;
      EncodeSegmentHeader(identity, MutableBytes(moved.file));
      PutHeader(moved, 0, header);
      CHECK(world.Read(moved, 0) == ReadVerdict::kCorrupt);
    }
    // Of two records of one segment: the other's payload, the other's key.
    const MadeSegment made = Sealed(identity, MakeSealer(seal), 2);
    for (const bool whole : {false, true}) {
      MadeSegment swapped = made;
      RecordHeader header = HeaderOf(made, 1);
      header.offset = made.entries[0].offset;
      if (!whole) std::memcpy(header.key, KeyOf(0).data(), header.key_bytes);
      std::memcpy(swapped.file.data() + made.entries[0].offset + kStorageUnit,
                  made.file.data() + made.entries[1].offset + kStorageUnit, header.stored_bytes);
      PutHeader(swapped, 0, header);
      CHECK(world.Read(swapped, 0) == ReadVerdict::kCorrupt);
    }
  }
}

TEST(WithoutAKeySealedRecordsAreMisses) {
  World world(nullptr);
  for (const Seal seal : kSeals) {
    CHECK(world.Read(Sealed(MakeIdentity(kChunkBytes), MakeSealer(seal), 1), 0) == ReadVerdict::kMissing);
  }
}

TEST(ASealTakenAwayIsAMiss) {
  for (const Seal seal : kSeals) {
    MadeSegment made = Sealed(MakeIdentity(kChunkBytes), MakeSealer(seal), 1);
    RecordHeader header = HeaderOf(made, 0);
    header.seal = 0;
    std::memset(header.salt, 0, sizeof(header.salt));
    std::memset(header.payload_tag, 0, sizeof(header.payload_tag));
    std::memset(header.header_tag, 0, sizeof(header.header_tag));
    PutHeader(made, 0, header);
    CHECK(World(MakeSealer(seal)).Read(made, 0) == ReadVerdict::kCorrupt);
  }
}

TEST(NoTwoRecordsHaveOneKey) {
  for (const Seal seal : kSeals) {
    const MadeSegment one = Sealed(MakeIdentity(kChunkBytes), MakeSealer(seal), 1);
    const MadeSegment two = Sealed(MakeIdentity(kChunkBytes), MakeSealer(seal), 1);
    CHECK(std::memcmp(HeaderOf(one, 0).salt, HeaderOf(two, 0).salt, kSealSaltBytes) != 0);
    const size_t begin = one.entries[0].offset + kStorageUnit;
    CHECK((one.file.substr(begin) == two.file.substr(begin)) == (seal == Seal::kMac));
  }
}

TEST(AScanWithAKeyNamesForgeries) {
  const auto sealer = MakeSealer(Seal::kEncrypt);
  MadeSegment made = Sealed(MakeIdentity(kChunkBytes), sealer, 2);
  MemoryFiles files;
  const auto scan = [&](const Sealer* with) {
    files.Put("a", made.file);
    std::unique_ptr<ReadFile> file;
    CHECK(files.OpenRead("a", &file).ok());
    ScanResult result;
    CHECK(ScanSegment(*file, true, &result, nullptr, with).ok());
    return result.stopped;
  };
  CHECK(scan(sealer.get()).empty());
  CHECK(scan(MakeSealer(Seal::kMac, 'x').get()).find("its seal does not hold") != std::string::npos);
  RecordHeader header = HeaderOf(made, 1);
  header.payload_crc = 0;
  PutHeader(made, 1, header);
  CHECK(scan(sealer.get()).starts_with("at " + std::to_string(made.entries[1].offset) + ": its seal"));
  made = Sealed(MakeIdentity(kChunkBytes), nullptr, 1);
  CHECK(scan(sealer.get()).find("it is not sealed") != std::string::npos);
}

TEST(WhatCannotBeUsedIsSaid) {
  std::string why;
  CHECK(Sealer::Make("short", Seal::kMac, &why) == nullptr);
  CHECK(why == "the key has 5 bytes; 32 are wanted");
  const CryptoLibrary none = LoadCrypto("libkvtier-none.so.3");
  CHECK(none.hmac == nullptr);
  CHECK(none.error.find("OpenSSL 3 is not available: libkvtier-none.so.3") != std::string::npos);
  const CryptoLibrary other = LoadCrypto("libm.so.6");
  CHECK(other.context_new == nullptr);
  CHECK(other.error == "OpenSSL 3 is not available: libm.so.6 has no EVP_CIPHER_CTX_new");
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
