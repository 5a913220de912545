// Chunks read from segments: in few I/Os, in order, and nothing that does not verify.
#include "storage/segment_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "read_fixture.h"
#include "segment/payload_codec.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kChunkBytes = 3 * kStorageUnit - 100;  // not a whole number of units
constexpr uint64_t kSlotBytes = 3 * kStorageUnit;
constexpr uint8_t kUntouched = 0xee;

struct FreeAligned {
  void operator()(uint8_t* data) const { std::free(data); }
};

// Room for chunks as the arena has it, each with a guard behind it.
class Slots {
 public:
  explicit Slots(size_t count)
      : data_(static_cast<uint8_t*>(std::aligned_alloc(kStorageUnit, count * 2 * kSlotBytes))) {
    std::memset(data_.get(), kUntouched, count * 2 * kSlotBytes);
    count_ = count;
  }
  ~Slots() {
    for (size_t i = 0; i < count_; ++i) {
      for (uint64_t at = 0; at < kSlotBytes; ++at) CHECK(slot(i)[kSlotBytes + at] == kUntouched);
    }
  }
  uint8_t* slot(size_t i) const { return data_.get() + i * 2 * kSlotBytes; }
  std::string chunk(size_t i) const { return {reinterpret_cast<char*>(slot(i)), kChunkBytes}; }

 private:
  std::unique_ptr<uint8_t, FreeAligned> data_;
  size_t count_;
};

struct World : ReadFixture {
  explicit World(size_t records = 8, ReadOptions with = {}, size_t slot_count = 0)
      : ReadFixture(OfChunks(with)), slots(std::max(records + 2, slot_count)) {
    for (size_t i = 0; i < records; ++i) made.Add(KeyOf(i), PayloadOf(i, kChunkBytes));
    if (records > 0) Begin();
  }
  static ReadOptions OfChunks(ReadOptions with) {
    with.chunk_bytes = kChunkBytes;
    return with;
  }
  void Begin() {
    segment = Publish(made);
    for (size_t i = 0; i < made.entries.size(); ++i) wanted.push_back(WantedOf(i));
  }
  WantedChunk WantedOf(size_t i) const {
    const Where where = WhereOf(*segment, made.entries[i]);
    return {where.offset, where.stored_bytes, tpu_sync_native::KeyOf(made.entries[i]), slots.slot(i)};
  }
  // Reads `wanted`; every verdict came once, in order.
  std::vector<ReadVerdict> Read() {
    std::vector<ReadVerdict> verdicts;
    ReadChunks(*context, *segment, wanted, [&](size_t i, ReadVerdict verdict) {
      CHECK(i == verdicts.size());
      verdicts.push_back(verdict);
    });
    CHECK(verdicts.size() == wanted.size());
    return verdicts;
  }
  void CheckAll(ReadVerdict verdict) {
    for (const ReadVerdict got : Read()) CHECK(got == verdict);
  }
  // All but this one are read well.
  void CheckOnly(size_t bad, ReadVerdict verdict) {
    const std::vector<ReadVerdict> verdicts = Read();
    for (size_t i = 0; i < verdicts.size(); ++i)
      CHECK(verdicts[i] == (i == bad ? verdict : ReadVerdict::kOk));
  }
  void CheckBytes() const {
    for (size_t i = 0; i < made.entries.size(); ++i) CHECK(slots.chunk(i) == PayloadOf(i, kChunkBytes));
  }

  Slots slots;
  MadeSegment made = NewSegment();
  std::shared_ptr<Segment> segment;
  std::vector<WantedChunk> wanted;
};

TEST(neighbours_are_one_read) {
  World world;
  world.CheckAll(ReadVerdict::kOk);
  world.CheckBytes();
  const std::vector<ReadCall> reads = world.TakeReads();
  CHECK(reads.size() == 1);
  CHECK(reads[0].offset == kStorageUnit && reads[0].bytes == 8 * (kStorageUnit + kSlotBytes));
}

TEST(a_small_gap_is_read_over_a_large_one_is_not) {
  World world(40);
  const std::vector<WantedChunk> all = world.wanted;
  world.wanted = {all[0], all[2], all[3], all[39]};  // 16 KiB to the second, 560 KiB to the last
  world.CheckAll(ReadVerdict::kOk);
  for (const size_t i : {0, 2, 3, 39}) CHECK(world.slots.chunk(i) == PayloadOf(i, kChunkBytes));
  CHECK(world.slots.slot(1)[0] == kUntouched);
  CHECK(world.TakeReads().size() == 2);
}

TEST(backwards_and_twice_the_same) {
  World world;
  const std::vector<WantedChunk> all = world.wanted;
  world.wanted = {all[3], all[2], all[2], all[7]};
  world.wanted[2].target = world.slots.slot(9);
  world.CheckAll(ReadVerdict::kOk);
  CHECK(world.slots.chunk(2) == PayloadOf(2, kChunkBytes) &&
        world.slots.chunk(9) == PayloadOf(2, kChunkBytes));
  CHECK(world.slots.chunk(3) == PayloadOf(3, kChunkBytes) &&
        world.slots.chunk(7) == PayloadOf(7, kChunkBytes));
}

TEST(no_read_is_larger_than_told) {
  World world(20, {.io_bytes = 5 * (kStorageUnit + kSlotBytes)});
  world.CheckAll(ReadVerdict::kOk);
  world.CheckBytes();
  const std::vector<ReadCall> reads = world.TakeReads();
  CHECK(reads.size() == 4);
  for (const ReadCall& read : reads) CHECK(read.bytes == 5 * (kStorageUnit + kSlotBytes));
}

TEST(a_chunk_larger_than_one_read_is_read) {
  World world(3, {.io_bytes = kStorageUnit});
  world.CheckAll(ReadVerdict::kOk);
  world.CheckBytes();
  CHECK(world.TakeReads().size() == 3);
}

TEST(every_flipped_bit_of_a_header_is_a_miss) {
  for (uint64_t byte = 0; byte < kRecordHeaderBytes; ++byte) {
    World world(3);
    const uint64_t at = world.made.entries[1].offset + byte;
    CHECK(world.fake.memory->Flip(ReadFixture::PathOf(*world.segment), at,
                                  static_cast<uint8_t>(1u << (byte % 8))));
    world.CheckOnly(1, ReadVerdict::kCorrupt);
    CHECK(world.segment->dead_records == 1);
    CHECK(world.Knows(world.made, 0) && !world.Knows(world.made, 1) && world.Knows(world.made, 2));
  }
}

TEST(flipped_bits_of_a_payload_are_a_miss) {
  Random random(20);
  for (int round = 0; round < 200; ++round) {
    World world(3);
    const uint64_t at = world.made.entries[1].offset + kStorageUnit + random() % kChunkBytes;
    CHECK(world.fake.memory->Flip(ReadFixture::PathOf(*world.segment), at,
                                  static_cast<uint8_t>(1 + random() % 255)));
    world.CheckOnly(1, ReadVerdict::kCorrupt);
    CHECK(!world.Knows(world.made, 1));
  }
}

TEST(the_padding_is_nobodys) {
  World world(3);
  const uint64_t at = world.made.entries[1].offset + kStorageUnit + kChunkBytes;
  CHECK(world.fake.memory->Flip(ReadFixture::PathOf(*world.segment), at, 0xff));
  world.CheckAll(ReadVerdict::kOk);
}

TEST(a_sound_record_of_another_key_is_a_miss) {
  World world;
  const std::string other = KeyOf(1000);
  world.wanted[4].key = other;
  world.CheckOnly(4, ReadVerdict::kCorrupt);
  world.wanted[4].key = std::string_view(world.wanted[3].key).substr(0, 16);
  world.CheckOnly(4, ReadVerdict::kCorrupt);
}

TEST(a_sound_record_elsewhere_is_a_miss) {
  World world;
  world.wanted[4].offset = world.wanted[5].offset;  // there stands another key
  world.wanted[6].offset += kStorageUnit;           // in the middle of a record
  const std::vector<ReadVerdict> verdicts = world.Read();
  for (size_t i = 0; i < verdicts.size(); ++i) {
    CHECK(verdicts[i] == (i == 4 || i == 6 ? ReadVerdict::kCorrupt : ReadVerdict::kOk));
  }
}

TEST(a_record_of_another_segment_host_or_epoch_is_a_miss) {
  for (int what = 0; what < 4; ++what) {
    World world(3);
    SegmentIdentity stranger = world.made.identity;
    if (what == 0) ++stranger.number;
    if (what == 1) stranger.host_id[3] ^= 1;
    if (what == 2) --stranger.epoch;
    if (what == 3) stranger.namespace_id[0] ^= 1;
    MadeSegment forged(stranger);
    for (size_t i = 0; i < 3; ++i) forged.Add(KeyOf(i), PayloadOf(i, kChunkBytes));
    world.fake.memory->Put(ReadFixture::PathOf(*world.segment), forged.file);
    world.CheckAll(ReadVerdict::kCorrupt);
  }
}

TEST(a_place_that_cannot_be_is_a_miss_and_nothing_is_written) {
  World world;
  const std::vector<WantedChunk> all = world.wanted;
  const auto check = [&](uint64_t offset, uint64_t stored_bytes) {
    world.wanted = {all[0], all[1], all[2]};
    world.wanted[1].offset = offset;
    world.wanted[1].stored_bytes = stored_bytes;
    world.CheckOnly(1, ReadVerdict::kCorrupt);
    CHECK(world.slots.slot(1)[0] == kUntouched);
  };
  check(all[1].offset, kSlotBytes + kStorageUnit);  // would not fit the slot
  check(all[1].offset, 0);
  check(all[1].offset, kSlotBytes - 1);
  check(0, kSlotBytes);  // the segment's own header
  check(all[1].offset + 1, kSlotBytes);
  check(kStoredSegmentBytesMax, kSlotBytes);
}

TEST(a_file_that_is_gone_is_missing_and_stays_known) {
  World world;
  CHECK(world.context->files->Remove(ReadFixture::PathOf(*world.segment)).ok());
  world.CheckAll(ReadVerdict::kMissing);
  CHECK(world.Knows(world.made, 0));  // it may only have moved
  CHECK(world.segment->dead_records == 0);
}

TEST(an_adopted_segment_is_found_where_it_lies_now) {
  World world;
  world.CheckAll(ReadVerdict::kOk);
  const std::string from = world.segment->directory;
  const std::string to = from + ".adopt.00";
  CHECK(world.context->files->Rename(from, to).ok());
  world.context->segments->Move(world.segment->id, to, true);
  world.context->segments->DropFile(world.segment->id);
  world.CheckAll(ReadVerdict::kOk);
}

TEST(a_retired_segment_is_not_read) {
  World world;
  world.context->segments->Retire(world.segment->id);
  world.CheckAll(ReadVerdict::kMissing);
  CHECK(world.TakeReads().empty());
}

TEST(a_truncated_file_costs_what_was_cut_off) {
  World world;
  CHECK(
      world.fake.memory->Truncate(ReadFixture::PathOf(*world.segment), world.made.entries[6].offset + 5000));
  const std::vector<ReadVerdict> verdicts = world.Read();
  for (size_t i = 0; i < 8; ++i) {
    CHECK(verdicts[i] == (i < 6 ? ReadVerdict::kOk : ReadVerdict::kMissing));
    CHECK(world.Knows(world.made, i) == (i < 6));
  }
}

TEST(a_stale_descriptor_is_opened_anew) {
  World world;
  world.CheckAll(ReadVerdict::kOk);
  world.fake.plan->Add({.ops = kOpRead, .error = ESTALE});
  world.CheckAll(ReadVerdict::kOk);
}

TEST(one_bad_place_does_not_cost_its_neighbours) {
  World world;
  const uint64_t bad = world.made.entries[5].offset + kStorageUnit;
  world.OnRead([bad](const ReadCall& read) {
    return IoError{read.offset <= bad && bad < read.offset + read.bytes ? EIO : 0};
  });
  world.CheckOnly(5, ReadVerdict::kIo);
  CHECK(world.Knows(world.made, 5));  // perhaps it can be read another time
}

TEST(a_medium_that_fails_is_not_asked_for_each_chunk) {
  World world(8, {.failures_to_open = 3});
  world.fake.plan->Add({.ops = kOpRead, .times = -1, .error = EIO});
  world.CheckAll(ReadVerdict::kIo);
  CHECK(world.TakeReads().size() == 3);
  CHECK(world.context->loads->down());  // and its breaker knows
  CHECK(!world.context->control->down());
}

TEST(the_pool_that_reads_learns_of_failures) {
  World world(1, {.failures_to_open = 1});
  world.fake.plan->Add({.ops = kOpRead, .error = EIO});
  ReadChunks(
      *world.context, *world.segment, world.wanted,
      [](size_t, ReadVerdict verdict) { CHECK(verdict == ReadVerdict::kIo); }, world.context->control.get());
  CHECK(world.context->control->down() && !world.context->loads->down());
}

// Encoded payloads: as short as they come, and one that takes as many units as the chunk itself.
struct EncodedWorld : World {
  EncodedWorld() : World(0, {}, 6) {
    CHECK(CodecUnavailable(Codec::kLz4Shuffle2).empty());
    for (size_t i = 0; i < 6; ++i) {
      std::string encoded(kChunkBytes, '\0');
      const std::string payload = Payload(i);
      const uint64_t bytes =
          EncodePayload(Codec::kLz4Shuffle2, reinterpret_cast<const uint8_t*>(payload.data()), kChunkBytes,
                        MutableBytes(encoded));
      CHECK(bytes > 0);
      encoded.resize(bytes);
      made.Add(KeyOf(i), encoded, Codec::kLz4Shuffle2);
      same_units += RoundToUnit(bytes) == kSlotBytes;
    }
    Begin();
  }
  // Of the even ones nearly all is noise, the others shrink to one unit.
  static std::string Payload(size_t i) {
    std::string payload = PayloadOf(i, kChunkBytes);
    std::fill_n(payload.begin(), i % 2 == 0 ? 1500 : 9000, 'x');
    return payload;
  }
  void CheckPayloads() const {
    for (size_t i = 0; i < 6; ++i) CHECK(slots.chunk(i) == Payload(i));
  }
  int same_units = 0;
};

TEST(encoded_payloads_are_decoded_into_their_slots) {
  EncodedWorld world;
  CHECK(world.same_units == 3);
  world.CheckAll(ReadVerdict::kOk);
  world.CheckPayloads();
  CHECK(world.TakeReads().size() == 1);
}

TEST(an_encoded_payload_that_does_not_decode_is_a_miss) {
  EncodedWorld world;
  MadeSegment forged = world.NewSegment();
  for (size_t i = 0; i < 6; ++i) {  // sound records whose checksums hold; the payload says nothing
    forged.Add(KeyOf(i), PayloadOf(i, world.made.entries[i].stored_units * kStorageUnit - 7),
               Codec::kLz4Shuffle2);
  }
  world.fake.memory->Put(ReadFixture::PathOf(*world.segment), forged.file);
  world.CheckAll(ReadVerdict::kCorrupt);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
