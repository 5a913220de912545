"""What the native code makes of bytes that an independent writer made from the documentation."""

import os
import random
import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_bytes import BLOCK, CODECS, HOST, NAMESPACE, Segment, decoded, encoded, lease

from kvtier.io import native

KEYS = st.binary(min_size=16, max_size=64)
LZ4 = [codec for codec in CODECS if codec != "raw"]


@given(data=st.binary(max_size=70_000), start=st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_crc32c_is_everybody_elses(data: bytes, start: int) -> None:
    assert native.crc32c(data) == google_crc32c.value(data)
    assert native.crc32c(data, start) == google_crc32c.extend(start, data)


def test_crc32c_of_a_megabyte_in_parts() -> None:
    data = random.Random(1).randbytes(1_000_003)
    assert native.crc32c(data[400_001:], native.crc32c(data[:400_001])) == google_crc32c.value(data)
    assert native.crc32c_kernel() in ("sse4.2", "armv8", "table")


@given(
    keys=st.lists(KEYS, max_size=12),
    chunk_bytes=st.integers(1, 20_000),
    number=st.integers(1, 2**64 - 1),
    epoch=st.integers(0, 2**64 - 1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_segments_and_indexes_are_read_as_documented(
    tmp_path_factory: pytest.TempPathFactory,
    keys: list[bytes],
    chunk_bytes: int,
    number: int,
    epoch: int,
    seed: int,
) -> None:
    random_ = random.Random(seed)
    segment = Segment(chunk_bytes, number, epoch)
    for key in keys:
        segment.add(key, random_.randbytes(chunk_bytes))
    path = tmp_path_factory.mktemp("segment") / "some.kvs"
    path.write_bytes(segment.data)
    identity = {
        "namespace": NAMESPACE,
        "host": HOST,
        "number": number,
        "epoch": epoch,
        "chunk_bytes": chunk_bytes,
    }
    scan = native.scan_segment(str(path), True)
    assert {name: scan[name] for name in identity} == identity
    assert scan["stopped"] == ""
    assert scan["file_bytes"] == scan["valid_bytes"] == len(segment.data)
    assert scan["records"] == [{**entry, "why": ""} for entry in segment.entries]
    with path.open("rb") as file:
        assert native.scan_segment(file.fileno(), False) == scan

    if len(set(keys)) != len(keys):
        return  # of such a segment, only the later record is indexed: the C++ tests
    path.write_bytes(segment.index(sealed=True))
    index = native.read_index(str(path))
    assert {name: index[name] for name in identity} == identity
    assert index["segment_bytes"] == len(segment.data)
    assert index["sealed"] is True
    assert sorted(index["records"], key=lambda e: e["offset"]) == segment.entries


@pytest.mark.parametrize("codec", LZ4)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_lz4_is_the_lz4_packages(codec: str, data: st.DataObject) -> None:
    size = data.draw(st.one_of(st.integers(1, 5000), st.integers(BLOCK - 3, BLOCK + 3)))
    random_ = random.Random(data.draw(st.integers(0, 1000)))
    # Items that differ in their low bytes: as float16 and float32 numbers of one magnitude do.
    chunk = b"".join(struct.pack("<HBB", random_.randrange(4), 0x80, 0x3F) for _ in range(size // 4 + 1))[
        :size
    ]
    assert native.decode_payload(codec, encoded(chunk, codec), size) == chunk
    ours = native.encode_payload(codec, chunk)
    if ours is None:
        assert size < 200
    else:
        assert len(ours) <= size - size // 16
        assert decoded(ours, codec, size) == chunk


@pytest.mark.parametrize("codec", LZ4)
def test_noise_is_stored_raw(codec: str) -> None:
    assert native.encode_payload(codec, random.Random(2).randbytes(2_000_000)) is None


def test_codecs_by_name() -> None:
    for codec in CODECS:
        assert native.codec_unavailable(codec) == ""
    with pytest.raises(ValueError, match="codec is 'zstd'; raw, lz4"):
        native.codec_unavailable("zstd")
    with pytest.raises(ValueError, match="does not decode to 10 bytes"):
        native.decode_payload("lz4", b"\x01\x00\x00\x00x", 10)
    with pytest.raises(ValueError, match="larger than a chunk can be"):
        native.decode_payload("lz4", b"", 1 << 40)


def test_records_of_all_codecs_are_scanned(tmp_path: Path) -> None:
    segment = Segment(300_000)
    for codec in CODECS:
        segment.add(codec.ljust(20, "-").encode(), bytes(range(250)) * 1200, codec)
    path = tmp_path / "a.kvs"
    path.write_bytes(segment.data)
    scan = native.scan_segment(str(path), True)
    assert scan["stopped"] == ""
    assert [record["codec"] for record in scan["records"]] == list(CODECS)


def test_leases(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    path.write_bytes(lease(counter=9, leaving=True, boot_id=8, size=77))
    assert native.read_lease(str(path)) == {
        "host": HOST, "boot_id": 8, "counter": 9, "bytes": 77, "changes": 0, "leaving": True,
    }  # fmt: skip
    path.write_bytes(b"x" * 256)
    with pytest.raises(ValueError, match="magic is 0x7878787878787878"):
        native.read_lease(str(path))


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(lease())

    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "absent"):
        with pytest.raises(OSError):
            native.read_lease(str(tmp_path / name))
    with pytest.raises(OSError, match="not a regular file"):
        native.scan_segment(str(tmp_path), True)
