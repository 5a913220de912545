"""Writes the sound inputs of the fuzzer's corpus beside this file. Inputs that once failed are kept by hand.

Run with the development environment's Python from the root of the repository.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "tests" / "native"))

from segment_bytes import CODECS, Segment, encoded, lease  # noqa: E402

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


def inputs() -> dict[str, bytes]:
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


if __name__ == "__main__":
    for name, data in inputs().items():
        (HERE / f"{name}.bin").write_bytes(data)
