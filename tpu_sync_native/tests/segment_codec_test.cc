#include "segment/segment_codec.h"

#include <algorithm>
#include <string>

#include "check.h"
#include "segment_fixture.h"

namespace tpu_sync_native::testing {
namespace {

bool Has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::string Key(char c, size_t bytes = 32) { return std::string(bytes, c); }

TEST(SegmentHeaderRoundTrip) {
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    SegmentIdentity identity = MakeIdentity(1 + random() % kStoredChunkBytesMax, 1 + random(), random());
    for (uint8_t& byte : identity.host_id) byte = static_cast<uint8_t>(random());
    std::string unit(kStorageUnit, 'x');
    EncodeSegmentHeader(identity, MutableBytes(unit));
    SegmentIdentity decoded;
    CHECK(DecodeSegmentHeader(AsBytes(unit), &decoded).empty());
    CHECK(decoded == identity);
  }
}

TEST(EveryBitOfASegmentHeaderCounts) {
  std::string unit(kStorageUnit, '\0');
  EncodeSegmentHeader(MakeIdentity(8192), MutableBytes(unit));
  for (size_t bit = 0; bit < unit.size() * 8; ++bit) {
    unit[bit / 8] = static_cast<char>(unit[bit / 8] ^ (1 << (bit % 8)));
    SegmentIdentity decoded;
    CHECK(Has(DecodeSegmentHeader(AsBytes(unit), &decoded), "segment header: "));
    unit[bit / 8] = static_cast<char>(unit[bit / 8] ^ (1 << (bit % 8)));
  }
  SegmentIdentity decoded;
  CHECK(DecodeSegmentHeader(AsBytes(unit), &decoded).empty());
  CHECK(Has(DecodeSegmentHeader(AsBytes(unit).first(4095), &decoded), "4095 bytes; 4096"));
}

TEST(RecordHeaderRoundTrip) {
  Random random(2);
  for (int i = 0; i < 500; ++i) {
    const SegmentIdentity identity = MakeIdentity(1 + random() % (1 << 20), 1 + random() % 1000, random());
    const uint64_t offset = (1 + random() % 1000) * kStorageUnit;
    const std::string key = RandomBytes(random, kStoredKeyBytesMin + random() % 49);
    const Codec codec = random() % 2 == 0 ? Codec::kRaw : Codec::kLz4Shuffle2;
    const uint64_t stored = codec == Codec::kRaw ? identity.chunk_bytes : 1 + random() % identity.chunk_bytes;
    const auto crc = static_cast<uint32_t>(random());
    std::string unit(kStorageUnit, 'x');
    EncodeRecordHeader(identity, offset, key, codec, stored, crc, MutableBytes(unit));
    RecordHeader header;
    CHECK(CheckRecordHeader(AsBytes(unit), identity, offset, &header).empty());
    CHECK(KeyOf(header) == key);
    CHECK(header.stored_bytes == stored && header.payload_crc == crc);
    CHECK(header.codec == static_cast<uint32_t>(codec));
  }
}

TEST(EveryBitOfARecordHeaderCounts) {
  const SegmentIdentity identity = MakeIdentity(8192);
  std::string unit(kStorageUnit, '\0');
  EncodeRecordHeader(identity, 12288, Key('k'), Codec::kRaw, 8192, 1234, MutableBytes(unit));
  RecordHeader header;
  for (size_t bit = 0; bit < unit.size() * 8; ++bit) {
    unit[bit / 8] = static_cast<char>(unit[bit / 8] ^ (1 << (bit % 8)));
    CHECK(Has(CheckRecordHeader(AsBytes(unit), identity, 12288, &header), "record header: "));
    unit[bit / 8] = static_cast<char>(unit[bit / 8] ^ (1 << (bit % 8)));
  }
  CHECK(CheckRecordHeader(AsBytes(unit), identity, 12288, &header).empty());
}

// A header as `identity` would have it, its checksum right, but one thing else.
std::string CheckForged(const std::function<void(RecordHeader&)>& forge) {
  const SegmentIdentity identity = MakeIdentity(8192);
  std::string unit(kStorageUnit, '\0');
  EncodeRecordHeader(identity, 12288, Key('k'), Codec::kRaw, 8192, 1234, MutableBytes(unit));
  RecordHeader header;
  std::memcpy(&header, unit.data(), sizeof(header));
  forge(header);
  header.header_crc = 0;
  std::memcpy(unit.data(), &header, sizeof(header));
  header.header_crc = Crc32c(0, unit.data(), kRecordHeaderBytes);
  std::memcpy(unit.data(), &header, sizeof(header));
  return CheckRecordHeader(AsBytes(unit), identity, 12288, &header);
}

TEST(ForgedRecordHeadersAreNamed) {
  CHECK(CheckForged([](RecordHeader&) {}).empty());
  const auto wrong = [](const std::function<void(RecordHeader&)>& forge, std::string_view words) {
    const std::string text = CheckForged(forge);
    if (!Has(text, words)) Fail(__FILE__, __LINE__, std::string(words).c_str(), text);
  };
  wrong([](RecordHeader& header) { header.magic = kSegmentMagic; }, "magic is 0x");
  wrong([](RecordHeader& header) { header.version = 2; }, "version is 2; this program reads version 1");
  wrong([](RecordHeader& header) { header.namespace_id[3] ^= 1; }, "namespace is 101112");
  wrong([](RecordHeader& header) { header.host_id[3] ^= 1; }, "host is a0a1a2");
  wrong([](RecordHeader& header) { header.segment = 8; }, "segment is 8; 7 is wanted");
  wrong([](RecordHeader& header) { header.epoch = 2; }, "epoch is 2; 3 is wanted");
  wrong([](RecordHeader& header) { header.offset += 4096; }, "offset is 16384; 12288 is wanted");
  wrong([](RecordHeader& header) { header.chunk_bytes = 8191; }, "chunk_bytes is 8191; 8192 is wanted");
  wrong([](RecordHeader& header) { header.stored_bytes = 4096; }, "stored_bytes is 4096; 8192 is wanted");
  wrong([](RecordHeader& header) { header.codec = 3; }, "codec is 3; 0, 1, 2 and 4 are known");
  wrong(
      [](RecordHeader& header) {
        header.codec = 1;
        header.stored_bytes = 8193;
      },
      "stored_bytes is 8193; 1 to 8192 are allowed");
  wrong([](RecordHeader& header) { header.key_bytes = 15; }, "key_bytes is 15; 16 to 64 are allowed");
  wrong([](RecordHeader& header) { header.key_bytes = 65; }, "key_bytes is 65; 16 to 64 are allowed");
  wrong([](RecordHeader& header) { header.key_bytes = 16; }, "key has bytes behind its 16");
  wrong([](RecordHeader& header) { header.seal = 3; }, "seal is 3; 0, 1 and 2 are known");
  wrong([](RecordHeader& header) { header.salt[31] = 1; }, "it has tags and no seal");
  wrong([](RecordHeader& header) { header.header_tag[31] = 1; }, "it has tags and no seal");
  wrong([](RecordHeader& header) { header.reserved = 1; }, "reserved is 1; 0 is wanted");
}

struct DecodedIndex {
  std::string wrong;
  SegmentIdentity identity;
  uint64_t segment_bytes = 0;
  bool sealed = false;
  std::vector<IndexEntry> entries;
};

DecodedIndex Decode(std::string_view file) {
  DecodedIndex decoded;
  decoded.wrong =
      DecodeIndex(file, &decoded.identity, &decoded.segment_bytes, &decoded.sealed, &decoded.entries);
  return decoded;
}

TEST(IndexRoundTrip) {
  Random random(3);
  for (int i = 0; i < 60; ++i) {
    const int records = static_cast<int>(random() % 20);
    const MadeSegment segment = RandomSegment(random, 1 + random() % 9000, records);
    const DecodedIndex decoded = Decode(segment.Index(i % 2 == 0));
    CHECK(decoded.wrong.empty());
    CHECK(decoded.identity == segment.identity);
    CHECK(decoded.segment_bytes == segment.file.size());
    CHECK(decoded.sealed == (i % 2 == 0));
    CHECK(decoded.entries.size() == segment.entries.size());
    for (const IndexEntry& entry : segment.entries) {
      const auto same = [&](const IndexEntry& other) { return SameEntry(entry, other); };
      CHECK(std::any_of(decoded.entries.begin(), decoded.entries.end(), same));
    }
  }
}

TEST(OfTwoRecordsOfAKeyTheLaterIsIndexed) {
  MadeSegment segment(MakeIdentity(4096));
  segment.Add(Key('b'), std::string(4096, '1'));
  segment.Add(Key('a'), std::string(4096, '2'));
  segment.Add(Key('b'), std::string(4096, '3'));
  segment.Add(Key('b', 31), std::string(4096, '4'));  // another key
  const DecodedIndex decoded = Decode(segment.Index(true));
  CHECK(decoded.wrong.empty());
  CHECK(decoded.entries.size() == 3);
  CHECK(SameEntry(decoded.entries[0], segment.entries[1]));
  CHECK(SameEntry(decoded.entries[1], segment.entries[3]));
  CHECK(SameEntry(decoded.entries[2], segment.entries[2]));
}

TEST(EveryBitAndLengthOfAnIndexCounts) {
  Random random(4);
  std::string file = RandomSegment(random, 5000, 5).Index(true);
  for (size_t bit = 0; bit < file.size() * 8; ++bit) {
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ (1 << (bit % 8)));
    CHECK(!Decode(file).wrong.empty());
    CHECK(Decode(file).entries.empty());
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ (1 << (bit % 8)));
  }
  for (size_t bytes = 0; bytes < file.size(); ++bytes)
    CHECK(!Decode(std::string_view(file).substr(0, bytes)).wrong.empty());
  CHECK(Has(Decode(file + "x").wrong, "size of the file is"));
  CHECK(Decode(file).wrong.empty());
}

// An index whose checksums are right and one thing is not.
std::string ForgedIndex(const std::function<void(IndexHeader&, std::vector<IndexEntry>&)>& forge) {
  MadeSegment segment(MakeIdentity(5000));
  for (const char c : {'a', 'b', 'c'}) segment.Add(Key(c), std::string(5000, c));
  std::string file = segment.Index(true);
  IndexHeader header;
  std::memcpy(&header, file.data(), sizeof(header));
  forge(header, segment.entries);
  file.resize(kStorageUnit);
  file.append(reinterpret_cast<const char*>(segment.entries.data()),
              segment.entries.size() * sizeof(IndexEntry));
  header.entries_crc = Crc32c(0, file.data() + kStorageUnit, file.size() - kStorageUnit);
  header.header_crc = 0;
  std::memcpy(file.data(), &header, sizeof(header));
  header.header_crc = Crc32c(0, file.data(), kStorageUnit);
  std::memcpy(file.data(), &header, sizeof(header));
  return Decode(file).wrong;
}

TEST(ForgedIndexesAreNamed) {
  using Entries = std::vector<IndexEntry>;
  CHECK(ForgedIndex([](IndexHeader&, Entries&) {}).empty());
  const auto wrong = [](const std::function<void(IndexHeader&, Entries&)>& forge, std::string_view words) {
    const std::string text = ForgedIndex(forge);
    if (!Has(text, words)) Fail(__FILE__, __LINE__, std::string(words).c_str(), text);
  };
  wrong([](IndexHeader& header, Entries&) { header.version = 9; },
        "version is 9; this program reads version 1");
  wrong([](IndexHeader& header, Entries&) { header.count = 4; }, "size of the file is 4384; 4480 is wanted");
  wrong([](IndexHeader& header, Entries&) { header.count = ~0ull / 96; },
        "count is 192153584101141162; 0 to 4 are");
  wrong([](IndexHeader& header, Entries&) { header.segment = 0; }, "segment is 0");
  wrong([](IndexHeader& header, Entries&) { header.chunk_bytes = 0; }, "chunk_bytes is 0; 1 to");
  wrong([](IndexHeader& header, Entries&) { header.chunk_bytes = ~0ull; },
        "chunk_bytes is 18446744073709551615");
  wrong([](IndexHeader& header, Entries&) { header.segment_bytes = 5000; },
        "segment_bytes is 5000; a multiple");
  wrong([](IndexHeader& header, Entries&) { header.segment_bytes = ~0ull << 12; }, "segment_bytes is 1844");
  wrong([](IndexHeader& header, Entries&) { header.sealed = 2; }, "sealed is 2; 0 to 1");
  wrong([](IndexHeader&, Entries& entries) { entries[1].offset = 0; }, "index entry 1: offset is 0; 4096 to");
  wrong([](IndexHeader&, Entries& entries) { entries[1].offset += 512; },
        "offset is 16896; a multiple of 4096");
  wrong([](IndexHeader&, Entries& entries) { entries[2].offset += 4096; },
        "offset is 32768; 4096 to 28672 are");
  wrong([](IndexHeader&, Entries& entries) { entries[2].offset = ~0ull << 12; }, "offset is 1844");
  wrong([](IndexHeader&, Entries& entries) { entries[0].stored_units = 1; }, "stored_units is 1; 2 to 2");
  wrong([](IndexHeader&, Entries& entries) { entries[0].stored_units = ~0u; }, "stored_units is 4294967295");
  wrong([](IndexHeader&, Entries& entries) { entries[0].codec = 7; }, "codec is 7");
  wrong([](IndexHeader&, Entries& entries) { entries[0].key_bytes = 3; }, "key_bytes is 3; 16 to 64");
  wrong([](IndexHeader&, Entries& entries) { entries[0].key_bytes = ~0u; }, "key_bytes is 4294967295");
  wrong([](IndexHeader&, Entries& entries) { entries[0].reserved = 1; }, "reserved is 1");
  wrong([](IndexHeader&, Entries& entries) { std::swap(entries[0], entries[1]); },
        "index entry 1: key is not above the one before it");
  wrong([](IndexHeader&, Entries& entries) { entries[1] = entries[0]; }, "key is not above");
}

TEST(LeaseRoundTripAndDamage) {
  LeaseFile lease{};
  lease.host_id[5] = 9;
  lease.boot_id = 11;
  lease.counter = 12;
  lease.bytes = 13;
  lease.changes = 14;
  lease.leaving = 1;
  std::string file = EncodeLease(lease);
  CHECK(file.size() == kLeaseBytes);
  LeaseFile decoded;
  CHECK(DecodeLease(file, &decoded).empty());
  CHECK(std::memcmp(decoded.host_id, lease.host_id, 16) == 0);
  CHECK(decoded.boot_id == 11 && decoded.counter == 12 && decoded.bytes == 13 && decoded.changes == 14 &&
        decoded.leaving == 1);
  for (size_t bit = 0; bit < file.size() * 8; ++bit) {
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ (1 << (bit % 8)));
    CHECK(Has(DecodeLease(file, &decoded), "lease: "));
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ (1 << (bit % 8)));
  }
  CHECK(Has(DecodeLease(file.substr(0, 255), &decoded), "lease has 255 bytes; 256 are wanted"));
  CHECK(Has(DecodeLease(file + "x", &decoded), "lease has 257 bytes"));
  CHECK(Has(DecodeLease("", &decoded), "lease has 0 bytes"));
}

TEST(NamesAreStrict) {
  CHECK(SegmentName(1) == "seg-0000000001.kvs");
  CHECK(IndexName(12345678901) == "seg-12345678901.idx");
  CHECK(EpochName(3) == "epoch-3");
  uint64_t number = 0;
  for (const uint64_t wanted : {uint64_t{1}, uint64_t{4294967296}, ~uint64_t{0}}) {
    CHECK(ParseSegmentName(SegmentName(wanted), &number) && number == wanted);
    CHECK(ParseIndexName(IndexName(wanted), &number) && number == wanted);
    CHECK(ParseEpochName(EpochName(wanted), &number) && number == wanted);
  }
  for (const char* name : {"", "seg-", "seg-.kvs", "seg-1.kvs", "seg-0000000000.kvs", "seg-00000000001.kvs",
                           "seg-000000000a.kvs", "seg-0000000001.idx", "seg-0000000001.kvs ",
                           " seg-0000000001.kvs", "Seg-0000000001.kvs", "seg--000000001.kvs",
                           "seg-+000000001.kvs", "seg-0000000001.kvs.tmp", "seg-99999999999999999999.kvs",
                           "seg-184467440737095516160.kvs", "../seg-0000000001.kvs", "seg-00000000\n1.kvs"}) {
    CHECK(!ParseSegmentName(name, &number));
  }
  for (const char* name :
       {"epoch-", "epoch-0", "epoch-01", "epoch-1 ", "epoch--1", "epoch-18446744073709551616"}) {
    CHECK(!ParseEpochName(name, &number));
  }
  uint8_t id[16];
  CHECK(ParseHexId("00112233445566778899aabbccddeeff", id) &&
        HexId(id) == "00112233445566778899aabbccddeeff");
  for (const char* name : {"", "00112233445566778899AABBCCDDEEFF", "00112233445566778899aabbccddeef",
                           "00112233445566778899aabbccddeeff0", "0011223344556677-899aabbccddeeff"}) {
    CHECK(!ParseHexId(name, id));
  }
  for (const char* name : {"raw", "lz4", "lz4-shuffle2", "lz4-shuffle4"}) {
    Codec codec;
    CHECK(ParseCodec(name, &codec) && std::string(CodecName(codec)) == name);
  }
  Codec codec;
  CHECK(!ParseCodec("zstd", &codec) && !ParseCodec("", &codec));
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
