"""SGLang's page keys as kvtier's keys, and the page lists that follow from which of them are there.

A page key is a chain hash in hexadecimal, computed by SGLang. Nothing here loops over pages in Python, except
for keys that are not such hashes.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

KEY_BYTES = 32

PackedKeys = npt.NDArray[np.uint8]  # (pages, KEY_BYTES)


def pack(keys: Sequence[str]) -> PackedKeys:
    """One row per page."""
    text = "".join(keys)
    if len(text) == 2 * KEY_BYTES * len(keys) and set(map(len, keys)) <= {2 * KEY_BYTES}:
        try:
            return np.frombuffer(bytes.fromhex(text), np.uint8).reshape(len(keys), KEY_BYTES)
        except ValueError:
            pass  # of another alphabet: as any other key
    digests = b"".join(hashlib.sha256(b"page key " + key.encode()).digest() for key in keys)
    return np.frombuffer(digests, np.uint8).reshape(len(keys), KEY_BYTES)


def leading(present: npt.NDArray[np.bool_]) -> int:
    """Entries before the first that is False."""
    absent = np.flatnonzero(~present)
    return int(absent[0]) if len(absent) else len(present)


def ends_of_windows(present: npt.NDArray[np.bool_], window: int) -> npt.NDArray[np.bool_]:
    """Per prefix of 1 to n pages: its last `window` pages are there (all of them, if it is shorter)."""
    counts = np.concatenate(([0], np.cumsum(present)))
    ends = np.arange(1, len(present) + 1)
    begins = np.maximum(ends - window, 0)
    return counts[ends] - counts[begins] == ends - begins
