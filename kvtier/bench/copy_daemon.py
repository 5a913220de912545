"""CPU time of storing and loading through a real daemon, the engine's process and the daemon's together."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from kvtier.bench import machine
from kvtier.bench.copy_arena import Arena
from kvtier.bench.cpu_time import process_s
from kvtier.bench.daemon import KeyArray, client_of, open_namespace, random_keys, serving
from kvtier.bench.report import BenchSkipped
from kvtier.bench.scale import Scale
from kvtier.client.client import Client
from kvtier.client.values import SlotLease
from kvtier.io import native

CHUNK_BYTES: Final = 2 << 20
BLOCKS_PER_CHUNK: Final = 16
_JOB_CHUNKS: Final = 16
_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True)
class Spent:
    """CPU seconds per 10^9 bytes moved."""

    first_store: float  # into an arena that this process has not touched yet
    store: float
    load: float
    memcpy: float  # by one thread


class _Engine:
    """What an engine's process does: reserve, store, commit; lease, load, release."""

    def __init__(self, client: Client, memory: Arena) -> None:
        self._namespace = open_namespace(client, "copy", CHUNK_BYTES)
        self._chunks = memory.total_bytes // CHUNK_BYTES
        self._copies = client.copy_engine(threads=machine.cores())
        page_bytes = CHUNK_BYTES // BLOCKS_PER_CHUNK
        region = (memory.device_address, page_bytes, page_bytes)
        self._layout = self._copies.add_layout([region], self._chunks * BLOCKS_PER_CHUNK, BLOCKS_PER_CHUNK)

    def store(self, keys: KeyArray) -> None:
        for first in range(0, self._chunks, _JOB_CHUNKS):
            grant = self._namespace.reserve_slots(keys[first : first + _JOB_CHUNKS])
            self._move("store", first, grant)
            self._namespace.commit_slots(grant)

    def load(self, keys: KeyArray) -> None:
        for first in range(0, self._chunks, _JOB_CHUNKS):
            lease = self._namespace.lease_slots(keys[first : first + _JOB_CHUNKS])
            self._move("load", first, lease)
            self._namespace.release_slots(lease)

    def close(self) -> None:
        self._copies.close()

    def _move(self, direction: Literal["store", "load"], first_chunk: int, lease: SlotLease) -> None:
        positions = np.arange(len(lease) * BLOCKS_PER_CHUNK, dtype=np.int64)
        blocks = positions + first_chunk * BLOCKS_PER_CHUNK
        refs = (lease.slots, lease.generations, lease.offsets)
        self._copies.submit(1, direction, [self._layout], [len(blocks)], blocks, positions, refs)
        if not self._copies.wait([1], _TIMEOUT_S):
            raise TimeoutError(f"a {direction} of {len(lease)} chunks took over {_TIMEOUT_S:g} s")
        [(_, ok, *_)] = self._copies.poll()
        if not ok or len(lease) != _JOB_CHUNKS:
            raise BenchSkipped(f"a {direction} of {_JOB_CHUNKS} chunks did not go through")


def cpu_per_gb(scale: Scale) -> Spent:
    """A first pass, then several that fill the arena with new chunks and load them."""
    total_bytes = scale.pick(64 << 20, 1 << 30)
    repeats = scale.pick(1, 4)
    chunks = total_bytes // CHUNK_BYTES
    with ExitStack() as stack:
        memory = stack.enter_context(Arena(total_bytes))
        # As large as what is stored, so that the first pass touches all of it.
        daemon = stack.enter_context(serving(total_bytes * 5 // 4))  # a full arena keeps some slots free
        engine = _Engine(stack.enter_context(client_of(daemon)), memory)
        stack.callback(engine.close)

        def both_s() -> float:
            return time.process_time() + process_s(daemon.process.pid)

        spent_s = dict.fromkeys(("first", "store", "load", "memcpy"), 0.0)
        before_s = both_s()
        engine.store(random_keys(chunks, seed=0))
        spent_s["first"] = (both_s() - before_s) * repeats
        rows = _rows(memory, chunks)
        for repeat in range(1, repeats + 1):
            keys = random_keys(chunks, seed=repeat)
            for direction, work in (("store", engine.store), ("load", engine.load)):
                before_s = both_s()
                work(keys)
                spent_s[direction] += both_s() - before_s
            spent_s["memcpy"] += native.copy_reference(rows, "memcpy", 1)[1]
    moved_gb = total_bytes * repeats / 1e9
    return Spent(
        first_store=spent_s["first"] / moved_gb,
        store=spent_s["store"] / moved_gb,
        load=spent_s["load"] / moved_gb,
        memcpy=spent_s["memcpy"] / moved_gb,
    )


def _rows(memory: Arena, chunks: int) -> npt.NDArray[np.uint64]:
    starts = np.arange(chunks) * CHUNK_BYTES
    lengths = np.full(chunks, CHUNK_BYTES)
    rows = np.stack([memory.device_address + starts, memory.address + starts, lengths], axis=1)
    return rows.astype(np.uint64)
