"""One engine's part in the load, without an engine: a process with tensors of its own, in a closed loop.

Its users are conversations of the real trace that take turns; one that ends is followed by the next. A
request is what an adapter does: look up, lease the leading hits, load them, compare every byte, release;
reserve the rest, write it into the tensors, store, commit. A flooding engine only reserves and commits,
chunks that nobody asks for again; it spends no time on their bytes.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from kvtier.bench.daemon import KeyArray, random_keys
from kvtier.client.client import Client
from kvtier.client.values import Grant, SlotLease
from kvtier.demo import trace
from kvtier.demo.schedule import schedule
from kvtier.errors import KVTierError

CHUNK_BYTES: Final = 32 << 10
CHUNK_BLOCKS: Final = 16  # of the trace, 64 tokens each
REQUEST_CHUNKS_MAX: Final = 256
USERS: Final = 6
FLOOD_CHUNKS: Final = 256
DEADLINE_MS: Final = 5000  # a loaded machine is no fault here; what a wait may take is another benchmark's
COPY_S: Final = 30.0
CALLS: Final = ("lookup", "lease", "load", "reserve", "store")
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class Tally:
    """What one engine did and saw."""

    requests: int = 0
    chunks: int = 0  # asked for
    loaded: int = 0  # of these, found and loaded
    compared: int = 0
    wrong: int = 0  # with at least one wrong byte
    stored: int = 0
    no_space: int = 0
    errors: list[str] = field(default_factory=list)
    times_ns: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in CALLS})


def prompts(number: int) -> Iterator[KeyArray]:
    """The keys of one request after another, for ever; other engines and later passes have other ones."""
    sessions = cycle(session for session in trace.load() if len(session.requests) > 3)
    edition = count()

    def user() -> Iterator[KeyArray]:
        own, pass_number = next(sessions), next(edition)
        for turn in schedule([own], chunk_blocks=CHUNK_BLOCKS, gap_s=0.0):
            keys = turn.keys[:REQUEST_CHUNKS_MAX].copy()
            keys[:, 31] ^= number + 1
            keys[:, 30] ^= pass_number & 0xFF
            keys[:, 29] ^= pass_number >> 8 & 0xFF
            if len(keys):
                yield keys

    users = [user() for _ in range(USERS)]
    for place in cycle(range(USERS)):
        keys = next(users[place], None)
        while keys is None:
            users[place] = user()
            keys = next(users[place], None)
        yield keys


class Engine:
    """Loads into and stores from tensors of its own."""

    def __init__(self, client: Client, label: str) -> None:
        self._ns = client.namespace({"benchmark": "load", "tenant": label}, CHUNK_BYTES, label=label)
        words = CHUNK_BYTES // 8
        self._ramp = np.arange(words, dtype=np.uint64) * _ODD
        self._tensors = np.zeros((REQUEST_CHUNKS_MAX, words), np.uint64)
        self._copies = client.copy_engine(threads=1)
        region = (self._tensors.ctypes.data, CHUNK_BYTES, CHUNK_BYTES)
        self._layout = self._copies.add_layout([region], REQUEST_CHUNKS_MAX, 1)
        self.tally = Tally()

    def close(self) -> None:
        """End its copy threads."""
        self._copies.close()

    def request(self, keys: KeyArray) -> None:
        """One request whose prompt has these chunks."""
        tally = self.tally
        with _Timed(tally, "lookup"):
            self._ns.lookup_count(keys)
        with _Timed(tally, "lease"):
            lease = self._ns.lease_slots(keys)
        loaded = len(lease)
        if loaded:
            with _Timed(tally, "load"):
                self._move("load", lease)
            self._compare(keys[:loaded])
        self._ns.release_slots(lease)
        if loaded < len(keys):
            self.store(keys[loaded:])
        tally.requests += 1
        tally.chunks += len(keys)
        tally.loaded += loaded

    def store(self, keys: KeyArray) -> None:
        """What is not there of these."""
        tally = self.tally
        with _Timed(tally, "reserve"):
            grant = self._ns.reserve_slots(keys)
        if len(grant):
            seeds = _seeds(keys[grant.grants == Grant.GRANTED])
            np.bitwise_xor(self._ramp[None, :], seeds[:, None], out=self._tensors[: len(grant)])
            with _Timed(tally, "store"):
                self._move("store", grant)
        self._ns.commit_slots(grant)
        tally.stored += len(grant)
        tally.no_space += int((grant.grants == Grant.NO_SPACE).sum())

    def flood(self, keys: KeyArray) -> None:
        """Take room for these, whoever has it."""
        grant = self._ns.reserve_slots(keys)
        self._ns.commit_slots(grant)
        self.tally.requests += 1
        self.tally.stored += len(grant)
        self.tally.no_space += int((grant.grants == Grant.NO_SPACE).sum())

    def _move(self, direction: Literal["store", "load"], lease: SlotLease) -> None:
        chunks = np.arange(len(lease), dtype=np.int64)
        self._copies.submit(1, direction, [self._layout], [len(chunks)], chunks, chunks, lease.refs)
        if not self._copies.wait([1], COPY_S):
            raise TimeoutError(f"a {direction} of {len(lease)} chunks took over {COPY_S:g} s")
        [(_, ok, *_)] = self._copies.poll()
        if not ok:
            self.tally.errors.append(f"a {direction} of {len(lease)} chunks failed")

    def _compare(self, keys: KeyArray) -> None:
        right = np.bitwise_xor(self._ramp[None, :], _seeds(keys)[:, None]) == self._tensors[: len(keys)]
        self.tally.compared += len(keys)
        self.tally.wrong += int((~right.all(axis=1)).sum())


class _Timed:
    """The time of one call goes to the tally."""

    def __init__(self, tally: Tally, name: str) -> None:
        self._times_ns = tally.times_ns[name]

    def __enter__(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._times_ns.append(time.perf_counter_ns() - self._began_ns)


def _seeds(keys: KeyArray) -> npt.NDArray[np.uint64]:
    words = np.ascontiguousarray(keys).view(np.uint64)
    return np.asarray(words[:, 0] ^ words[:, 3] * _ODD, np.uint64)


def _drive(engine: Engine, number: int, role: str, end_s: float) -> None:
    if role == "flood":
        fresh = np.random.default_rng()
        while time.monotonic() < end_s:
            engine.flood(random_keys(FLOOD_CHUNKS, seed=int(fresh.integers(1 << 62))))
        return
    for keys in prompts(number):
        if time.monotonic() >= end_s:
            return
        engine.request(keys)


def main(address: str, number: int, role: str) -> None:
    """The process's life: `ready`, then a line with seconds to run comes in, then the tally goes out."""
    answer: dict[str, Any]
    with Client.connect(address, name=f"load/{role}/{number}", deadline_ms=DEADLINE_MS) as client:
        engine = Engine(client, role)
        print("ready", flush=True)
        end_s = time.monotonic() + float(sys.stdin.readline())
        try:
            _drive(engine, number, role, end_s)
        except (KVTierError, TimeoutError) as error:
            engine.tally.errors.append(f"{type(error).__name__}: {error}")
        answer = {name: getattr(engine.tally, name) for name in engine.tally.__dataclass_fields__}
        engine.close()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
