"""Who asks when: the trace's sessions laid out on one clock, and the keys of their chunks.

Simulated time orders the requests; nobody waits for it.
"""

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtier.demo.trace import Session

KEY_BYTES = 32
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One request of one session, at a simulated time."""

    at_s: float
    session: str  # its turns must follow each other
    keys: npt.NDArray[np.uint8]  # (chunks, 32): the full chunks of the prompt


def schedule(
    sessions: Sequence[Session], *, chunk_blocks: int, gap_s: float, passes: int = 1, until_s: float = 0.0
) -> Iterator[Turn]:
    """All turns in the order of simulated time.

    A session starts `gap_s` after the one before it. Each further pass plays the trace again, later and with
    fresh content (other keys), so nothing of an earlier pass can be hit. until_s > 0 cuts what comes later.
    """
    starts = [
        _turns(session, number * gap_s, chunk_blocks, str(number // len(sessions)))
        for number, session in enumerate(list(sessions) * passes)
    ]
    for turn in heapq.merge(*starts, key=lambda turn: turn.at_s):
        if until_s and turn.at_s > until_s:
            return
        yield turn


def _turns(session: Session, start_s: float, chunk_blocks: int, edition: str) -> Iterator[Turn]:
    own = _seed(edition, session.space)
    shared = _seed(edition, "prefix", session.shared_prefix)
    shared_chunks = session.shared_blocks // chunk_blocks if session.shared_prefix else 0
    at_s = start_s
    for request in session.requests:
        at_s = max(at_s, start_s + request.at_s)
        # A block's id stands for its whole prefix, so the last block's id of a chunk names the chunk.
        ends = request.block_ids[chunk_blocks - 1 :: chunk_blocks].astype(np.uint64)
        ids = ends ^ own
        leading = min(shared_chunks, len(ids))
        ids[:leading] = np.arange(leading, dtype=np.uint64) ^ shared
        yield Turn(at_s, f"{edition}/{session.id}", keys_of(ids))


def keys_of(ids: U64) -> npt.NDArray[np.uint8]:
    """(n, 32) key bytes of n chunk ids: four scrambled words each."""
    words = np.empty((len(ids), KEY_BYTES // 8), np.uint64)
    for column in range(words.shape[1]):
        words[:, column] = _scramble(ids + np.uint64((column + 1) * 0xD1B54A32D192ED03 & (1 << 64) - 1))
    return words.view(np.uint8)


def _scramble(values: U64) -> U64:
    """The finalizer of splitmix64: a bijection, so different ids never share a key."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _seed(*parts: str) -> np.uint64:
    # The low 24 bits stay zero: block ids are xor-ed there, so those of two sessions cannot meet.
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return np.uint64(int.from_bytes(digest[:5], "little") << 24)


def reusable(turns: Iterator[Turn]) -> tuple[int, int, int]:
    """(chunks asked for, chunks that a cache of any size could answer, different chunks)."""
    seen: set[bytes] = set()
    asked = answered = 0
    for turn in turns:
        raw = turn.keys.tobytes()
        for start in range(0, len(raw), KEY_BYTES):
            key = raw[start : start + 16]
            answered += key in seen
            seen.add(key)
        asked += len(turn.keys)
    return asked, answered, len(seen)
