"""Writes the sound inputs of the fuzz targets into corpus/<target>. Inputs that once failed are kept by hand.

Run with the development environment's Python from the root of the repository.
"""

import struct
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "tests" / "native"))

from segment_bytes import CODECS, Segment, encoded, lease  # noqa: E402

# ---- segment: the first byte picks the parser (segment_fuzz.h) ----

SEGMENT, INDEX, LEASE, RECORD, PAYLOAD = (bytes([parser]) for parser in range(5))


def segments() -> dict[str, Segment]:
    """Small ones of each kind."""
    made = {
        "empty": Segment(300),
        "raw": Segment(300, 3, 5),
        "wide": Segment(9000),
        "mixed": Segment(1000, 2),
    }
    for i in range(3):
        made["raw"].add(bytes([65 + i]) * (16 + 24 * i), bytes(range(100)) * 3)
    made["wide"].add(b"w" * 32, bytes(9000))
    for codec in CODECS:
        made["mixed"].add(codec.ljust(20, "-").encode(), bytes(range(250)) * 4, codec)
    return made


def segment_inputs() -> dict[str, bytes]:
    """By file name."""
    found = {"lease": LEASE + lease(), "lease-left": LEASE + lease(leaving=True)}
    for name, segment in segments().items():
        found[f"segment-{name}"] = SEGMENT + bytes(segment.data)
        found[f"index-{name}"] = INDEX + segment.index(sealed=name != "raw")
    raw = segments()["raw"]
    found["segment-torn"] = SEGMENT + bytes(raw.data[:-5000])
    found["record"] = RECORD + bytes(raw.data[4096:8192])
    chunk = bytes(range(200)) * 7
    for codec, number in CODECS.items():
        found[f"payload-{codec}"] = (
            PAYLOAD + bytes([number]) + len(chunk).to_bytes(4, "little") + encoded(chunk, codec)
        )
    return found


# ---- ring: RingClaim, then records (ring_fuzz_test.cc, ring_layout.h) ----

AREA_BYTES = 10 << 20
SKIP, PING, GET, RESERVE, RELEASE, COMMIT, ABORT, TOUCH, DRAINED, RENEW, PREFETCH = range(11)


def key(number: int) -> bytes:
    """That of tests/store_fixture.h."""
    return b"k" * 24 + number.to_bytes(8, "little")


def record(
    op: int, *, keys: list[bytes] | None = None, lease_id: int = 0, keep: bytes = b"", posted: bool = False
) -> bytes:
    """One request."""
    body = keep
    if keys is not None:
        ends = [sum(len(k) for k in keys[:i]) for i in range(len(keys) + 1)]
        body = struct.pack(f"<{len(ends)}I", *ends) + b"".join(keys)
    count = 0 if keys is None else len(keys)
    record_bytes = (64 + len(body) + 63) // 64 * 64
    head = struct.pack("<IBBHQQIII", record_bytes, op, not posted, 0, 1, lease_id, 0, count, len(keep))
    return (head.ljust(64, b"\0") + body).ljust(record_bytes, b"\0")


def ring(*records: bytes, head: int = 0) -> bytes:
    """A client that has posted these."""
    area = b"".join(records)
    return struct.pack("<QQ", len(area), head).ljust(64, b"\0") + area


def ring_inputs() -> dict[str, bytes]:
    """By file name. The honest session of the test has leases 2 (read) and 3 (write)."""
    some, own = [key(n) for n in range(8)], [key(n) for n in range(900, 908)]
    long_keys = [bytes([n]) * 64 for n in range(3)]
    commits = record(COMMIT, lease_id=4, keep=b"\xff")
    return {
        "ping": ring(record(PING)),
        "posted": ring(record(PING, posted=True), record(TOUCH, keys=some, posted=True), record(PING)),
        "lease": ring(record(GET, keys=some), record(RELEASE, lease_id=4)),
        "reserve": ring(record(RESERVE, keys=own), commits),
        "reserve-abort": ring(record(RESERVE, keys=long_keys), record(ABORT, lease_id=4)),
        "reserve-left": ring(record(RESERVE, keys=[key(n) for n in range(500, 580)])),
        "of-another": ring(
            record(RELEASE, lease_id=2), record(ABORT, lease_id=3), record(COMMIT, lease_id=3)
        ),
        "drained": ring(record(RESERVE, keys=own), record(DRAINED), record(RESERVE, keys=own), commits),
        "renew": ring(record(RENEW, keys=some), record(PREFETCH, keys=some)),
        "no-keys": ring(record(GET, keys=[]), record(RESERVE, keys=[b""]), record(GET, keys=[b"k" * 65])),
        "at-the-end": ring(record(GET, keys=some[:1]), head=AREA_BYTES - 128),
        "skip": ring(
            struct.pack("<IB", 128, SKIP).ljust(128, b"\0"), head=(1 << 40) // AREA_BYTES * AREA_BYTES - 128
        ),
    }


# ---- arena: a list of changes (arena_fuzz_test.cc, meta_layout.h) ----

HEADER, NAMESPACES, SESSIONS, LEASES, BUCKETS, SLOTS, KEY_TAILS, FILE_SIZE, COPY_SLOT, DATA_HOLE = range(10)
FREE, RESERVED, COMMITTED, QUARANTINED, PROMOTING = range(5)


def change(where: int, index: int = 0, field: int = 0, value: bytes = b"\0") -> bytes:
    """One."""
    return struct.pack("<BBHI", where, len(value), field, index) + value.ljust(16, b"\0") + bytes(8)


def u32(value: int) -> bytes:
    """As it lies in the file."""
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    """As it lies in the file."""
    return value.to_bytes(8, "little")


def place(page: int, state: int, key_bytes: int = 32, lease_row: int = 0) -> bytes:
    """A slot record's word of that name."""
    return u64(page | state << 32 | key_bytes << 40 | lease_row << 48)


def arena_inputs() -> dict[str, bytes]:
    """By file name."""
    slots = range(32)
    return {
        "as-it-was": change(BUCKETS),
        "magic": change(HEADER, 0, 0, b"KVTMETA0"),
        "another-size": change(HEADER, 0, 16, u64(1 << 40)),
        "counters-at-the-end": change(HEADER, 0, 192, u64(2**64 - 1) + u64(2**64 - 1)),
        "shorter": change(FILE_SIZE, 5000),
        "torn": b"".join(change(SLOTS, n, 0, u32(3)) for n in slots),
        "generations-at-the-end": b"".join(change(SLOTS, n, 4, u32(2**32 - 1)) for n in slots),
        "committed-all": b"".join(change(SLOTS, n, 8, place(n, COMMITTED)) for n in slots),
        "reserved-all": b"".join(change(SLOTS, n, 8, place(n, RESERVED, 32, 1)) for n in slots),
        "quarantined-all": b"".join(change(SLOTS, n, 8, place(n, QUARANTINED, 32, n)) for n in slots),
        "promoting-all": b"".join(change(SLOTS, n, 8, place(n, PROMOTING)) for n in slots),
        "no-such-state": b"".join(change(SLOTS, n, 12, bytes([n])) for n in slots),
        "no-such-namespace": b"".join(change(SLOTS, n, 16, u64(n)) for n in slots),
        "key-lengths": b"".join(change(SLOTS, n, 13, bytes([8 * n])) for n in slots),
        "one-key-twice": b"".join(
            change(COPY_SLOT, n, 8) + change(SLOTS, n, 8, place(n, COMMITTED)) for n in range(3)
        ),
        "epochs": b"".join(change(NAMESPACES, n, 0, u32(n)) for n in range(4)),
        "chunk-bytes": change(NAMESPACES, 0, 8, u64(3 * 4096)) + change(NAMESPACES, 1, 8, u64(4096)),
        "one-group": b"".join(change(SESSIONS, n, 16, u64(1)) for n in range(4)),
        "one-session": b"".join(change(SESSIONS, n, 0, u64(1)) for n in range(8)),
        "session-not-given-out": change(SESSIONS, 5, 0, u64(99) + u64(7) + u64(1)),
        "lease-not-given-out": change(LEASES, 5, 0, u64(99) + u64(1) + u64(1)),
        "leases": b"".join(change(LEASES, n, 0, u64(n) + u64(1)) for n in range(8)),
        "holes": change(DATA_HOLE, 0) + change(DATA_HOLE, 9),
    }


if __name__ == "__main__":
    targets = {"segment": segment_inputs(), "ring": ring_inputs(), "arena": arena_inputs()}
    for target, inputs in targets.items():
        (HERE / "corpus" / target).mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (HERE / "corpus" / target / f"{name}.bin").write_bytes(data)
