"""The storage format written down a second time, from docs/formats/segment.md alone: what the native code
reads must be what this writes. Checksums are google-crc32c's, blocks are the lz4 package's.
"""

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import lz4.block

from kvtier.format.fingerprint import canonical_json, namespace_id

UNIT = 4096
BLOCK = 256 * 1024
CODECS = {"raw": 0, "lz4": 1, "lz4-shuffle2": 2, "lz4-shuffle4": 4}
NAMESPACE = bytes(range(16))
HOST = bytes(range(100, 116))


def crc(data: bytes) -> int:
    return google_crc32c.value(data)


def padded(data: bytes, unit: int = UNIT) -> bytes:
    return data + bytes(-len(data) % unit)


def with_crc(data: bytes, covered: int) -> bytes:
    """`data` with the checksum of its first `covered` bytes at 12, that field taken as zero."""
    assert data[12:16] == bytes(4)
    return data[:12] + struct.pack("<I", crc(data[:covered])) + data[16:]


def shuffled(data: bytes, item_bytes: int) -> bytes:
    whole = len(data) - len(data) % item_bytes
    return b"".join(data[k:whole:item_bytes] for k in range(item_bytes)) + data[whole:]


def encoded(data: bytes, codec: str) -> bytes:
    """A payload of this codec, shrunk or not."""
    if codec == "raw":
        return data
    parts = []
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        turned = shuffled(block, CODECS[codec])
        small = lz4.block.compress(turned, store_size=False)
        if len(small) < len(block):
            parts.append(struct.pack("<I", len(small)) + small)
        else:
            parts.append(struct.pack("<I", len(block) | 1 << 31) + block)
    return b"".join(parts)


def decoded(payload: bytes, codec: str, chunk_bytes: int) -> bytes:
    """What a payload of this codec says."""
    if codec == "raw":
        return payload
    data, at = b"", 0
    while len(data) < chunk_bytes:
        block_bytes = min(BLOCK, chunk_bytes - len(data))
        (prefix,) = struct.unpack_from("<I", payload, at)
        length = prefix & 0x7FFFFFFF
        part, at = payload[at + 4 : at + 4 + length], at + 4 + length
        if not prefix >> 31:
            turned = lz4.block.decompress(part, uncompressed_size=block_bytes)
            item = CODECS[codec]
            items = block_bytes // item
            part = bytearray(block_bytes)
            for k in range(item):
                part[k : items * item : item] = turned[k * items : (k + 1) * items]
            part[items * item :] = turned[items * item :]
        data += bytes(part)
    assert at == len(payload)
    return data


@dataclass
class Segment:
    """A segment as its writer grows it."""

    chunk_bytes: int
    number: int = 1
    epoch: int = 0
    namespace: bytes = NAMESPACE
    host: bytes = HOST
    data: bytearray = field(default_factory=bytearray)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fields = struct.pack(
            "<8sII16s16sQQQ", b"KVTSEG01", 1, 0, self.namespace, self.host, self.number, self.epoch,
            self.chunk_bytes,
        )  # fmt: skip
        self.data += with_crc(padded(fields), UNIT)

    def add(self, key: bytes, chunk: bytes, codec: str = "raw") -> None:
        payload, offset = encoded(chunk, codec), len(self.data)
        fields = struct.pack(
            "<8sII16s16sQQQQQIIII64s", b"KVTREC01", 1, 0, self.namespace, self.host, self.number, self.epoch,
            offset, self.chunk_bytes, len(payload), crc(payload), CODECS[codec], len(key), 0, key,
        )  # fmt: skip
        self.data += with_crc(padded(fields), 256) + padded(payload)
        self.entries.append(
            {
                "key": key,
                "offset": offset,
                "stored_bytes": len(padded(payload)),
                "codec": codec,
                "payload_crc": crc(payload),
            }
        )

    def index(self, sealed: bool, segment_bytes: int | None = None) -> bytes:
        """Of its entries, as they are now."""
        entries = sorted(self.entries, key=lambda e: (e["key"].ljust(64, b"\0"), len(e["key"])))
        body = b"".join(
            struct.pack(
                "<64sQIIIIQ", e["key"], e["offset"], len(e["key"]), e["stored_bytes"] // UNIT,
                CODECS[e["codec"]], e["payload_crc"], 0,
            )
            for e in entries
        )  # fmt: skip
        fields = struct.pack(
            "<8sII16s16sQQQQQII", b"KVTIDX01", 1, 0, self.namespace, self.host, self.number, self.epoch,
            self.chunk_bytes, len(self.data) if segment_bytes is None else segment_bytes, len(entries),
            crc(body), int(sealed),
        )  # fmt: skip
        return with_crc(padded(fields), UNIT) + body


def lease(
    host: bytes = HOST, counter: int = 1, leaving: bool = False, boot_id: int = 7, size: int = 0
) -> bytes:
    fields = struct.pack("<8sII16sQQQQI", b"KVLEAS01", 1, 0, host, boot_id, counter, size, 0, int(leaving))
    return with_crc(padded(fields, 256), 256)


@dataclass
class Root:
    """A storage root on disk, made of the above."""

    path: Path
    fingerprint: dict[str, Any] = field(default_factory=lambda: {"model": "tiny", "dtype": "bfloat16"})
    chunk_bytes: int = 5000

    def __post_init__(self) -> None:
        self.id = namespace_id(canonical_json(self.fingerprint))
        self.namespace = self.path / "v1" / self.id.hex()
        (self.namespace / "hosts").mkdir(parents=True)
        (self.path / "kvtier.json").write_text('{"format": 1}\n')
        meta = {"chunk_bytes": self.chunk_bytes, "fingerprint": self.fingerprint}
        (self.namespace / "meta.json").write_text(
            json.dumps(meta, sort_keys=True, separators=(",", ":")) + "\n"
        )

    def host(self, host: bytes = HOST, name: str = "") -> Path:
        folder = self.namespace / "hosts" / (name or host.hex())
        folder.mkdir(exist_ok=True)
        (folder / "lease").write_bytes(lease(host))
        return folder

    def segment(self, number: int = 1, host: bytes = HOST, epoch: int = 0) -> Segment:
        return Segment(self.chunk_bytes, number, epoch, self.id, host)

    @staticmethod
    def write(folder: Path, segment: Segment, sealed: bool = True) -> Path:
        path = folder / f"seg-{segment.number:010}.kvs"
        path.write_bytes(segment.data)
        index = f"seg-{segment.number:010}.idx" if sealed else "tail.idx"
        (folder / index).write_bytes(segment.index(sealed))
        return path
