"""Does it pay to compress chunks on storage?

Chunks of 2 MiB, one core, through the very codecs that a segment's payload may have. What is stored, as a
share of the bytes (1 when the codec gives up, and the chunk is stored raw), and how fast a chunk is encoded
and decoded, by the core's own time. A medium of B GB/s reads a chunk in 1/B s per GB; through the codec it
takes share/B + 1/decode, or the larger of the two where other chunks are read meanwhile.

The data: numbers as a cache of keys and values has them. `normal`: independent, the worst case. `channels`:
every channel with an offset and a scale of its own, neighbouring tokens alike, as keys are. `half empty`:
channels, with every other token's numbers zero, as in a chunk that was not filled.

Reference of the same run: memcpy. Beside it, the checksum that every payload gets, with zlib's CRC-32.
"""

import time
import zlib
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from kvtier.bench.report import Result
from kvtier.bench.scale import Scale
from kvtier.io.native import crc32c, decode_payload, encode_payload

_CHUNK_BYTES: Final = 2 << 20
_CHANNELS: Final = 1024

Numbers = npt.NDArray[np.float32]


def run(scale: Scale) -> list[Result]:
    """Each kind of data, as bfloat16 and as float32, through each codec that fits it."""
    repeats = scale.pick(5, 20)
    source = np.random.default_rng(1).integers(0, 256, _CHUNK_BYTES, dtype=np.uint8).tobytes()
    copy = _gb_per_s(lambda: bytearray(source), repeats)
    checksum = _gb_per_s(lambda: crc32c(source), repeats)
    results = [
        Result("crc32c", checksum, "GB/s", "zlib.crc32", _gb_per_s(lambda: zlib.crc32(source), repeats))
    ]
    for name, numbers in _data().items():
        for dtype, chunk, codecs in (
            ("bfloat16", _as_bfloat16(numbers), ("lz4", "lz4-shuffle2")),
            ("float32", numbers.tobytes()[:_CHUNK_BYTES], ("lz4", "lz4-shuffle4")),
        ):
            for codec in codecs:
                results += _measure(f"{name}, {dtype}, {codec}", chunk, codec, repeats, copy)
    return results


def _measure(case: str, chunk: bytes, codec: str, repeats: int, copy: float) -> list[Result]:
    payload = encode_payload(codec, chunk)
    share = 1.0 if payload is None else len(payload) / len(chunk)
    results = [
        Result(f"{case}: share stored", share, "x", "raw", 1.0),
        Result(
            f"{case}: encode",
            _gb_per_s(lambda: encode_payload(codec, chunk), repeats),
            "GB/s",
            "memcpy",
            copy,
        ),
    ]
    if payload is not None:
        decode = _gb_per_s(lambda: decode_payload(codec, payload, len(chunk)), repeats)
        results.append(Result(f"{case}: decode", decode, "GB/s", "memcpy", copy))
    return results


def _gb_per_s(call: Callable[[], object], repeats: int) -> float:
    """Of the fastest call, in time of the core: a call longer than a time slice never has one to itself where
    others want it too, and the machine's other work is not the codec's."""
    best_s = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        call()
        best_s = min(best_s, time.thread_time() - start)
    return _CHUNK_BYTES / best_s / 1e9


def _data() -> dict[str, Numbers]:
    random = np.random.default_rng(2)
    tokens = _CHUNK_BYTES // 2 // _CHANNELS
    normal = random.standard_normal((tokens, _CHANNELS), dtype=np.float32)
    offsets = random.standard_normal(_CHANNELS, dtype=np.float32) * 4
    scales = np.exp(random.standard_normal(_CHANNELS, dtype=np.float32))
    steps = random.standard_normal((tokens, _CHANNELS), dtype=np.float32)
    alike = np.empty_like(steps)
    alike[0] = steps[0]
    for token in range(1, tokens):  # correlation 0.9 with the token before
        alike[token] = 0.9 * alike[token - 1] + 0.436 * steps[token]
    channels = (offsets + scales * alike).astype(np.float32)
    half_empty = channels.copy()
    half_empty[::2] = 0
    return {"normal": normal, "channels": channels, "half empty": half_empty}


def _as_bfloat16(numbers: Numbers) -> bytes:
    """Rounded to nearest even."""
    bits = numbers.view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16).tobytes()
