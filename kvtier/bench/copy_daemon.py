"""CPU time of storing and loading through a real daemon, the engine's process and the daemon's together."""

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from kvtier.bench import machine
from kvtier.bench.copy_arena import Arena
from kvtier.bench.daemon import client_of, open_namespace, random_keys, serving
from kvtier.bench.report import BenchSkipped
from kvtier.bench.scale import Scale
from kvtier.client.values import SlotLease
from kvtier.io import native

CHUNK_BYTES: Final = 2 << 20
BLOCKS_PER_CHUNK: Final = 16
_JOB_CHUNKS: Final = 16
_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True)
class Spent:
    """CPU seconds per 10^9 bytes moved."""

    cpu_s_per_gb: float
    reference_cpu_s_per_gb: float


def process_cpu_s(pid: int) -> float:
    """User and system time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_per_gb(scale: Scale) -> dict[str, Spent]:
    """By direction: `store` and `load`."""
    total_bytes = scale.pick(64 << 20, 1 << 30)
    repeats = scale.pick(1, 4)
    chunks = total_bytes // CHUNK_BYTES
    with ExitStack() as stack:
        memory = stack.enter_context(Arena(total_bytes))
        daemon = stack.enter_context(serving(total_bytes + total_bytes // 4))
        client = stack.enter_context(client_of(daemon))
        namespace = open_namespace(client, "copy", CHUNK_BYTES)
        engine = client.copy_engine(threads=machine.cores())
        page_bytes = CHUNK_BYTES // BLOCKS_PER_CHUNK
        region = (memory.device_address, page_bytes, page_bytes)
        layout = engine.add_layout([region], chunks * BLOCKS_PER_CHUNK, BLOCKS_PER_CHUNK)

        def move(direction: Literal["store", "load"], first_chunk: int, lease: SlotLease) -> None:
            positions = np.arange(len(lease) * BLOCKS_PER_CHUNK, dtype=np.int64)
            blocks = positions + first_chunk * BLOCKS_PER_CHUNK
            refs = (lease.slots, lease.generations, lease.offsets)
            engine.submit(1, direction, [layout], [len(blocks)], blocks, positions, refs)
            if not engine.wait([1], _TIMEOUT_S):
                raise TimeoutError(f"a {direction} of {len(lease)} chunks took over {_TIMEOUT_S:g} s")
            [(_, ok, *_)] = engine.poll()
            if not ok or len(lease) != _JOB_CHUNKS:
                raise BenchSkipped(f"a {direction} of {_JOB_CHUNKS} chunks did not go through")

        def store(keys: np.ndarray) -> None:
            for first in range(0, chunks, _JOB_CHUNKS):
                grant = namespace.reserve_slots(keys[first : first + _JOB_CHUNKS])
                move("store", first, grant)
                namespace.commit_slots(grant)

        def load(keys: np.ndarray) -> None:
            for first in range(0, chunks, _JOB_CHUNKS):
                lease = namespace.lease_slots(keys[first : first + _JOB_CHUNKS])
                move("load", first, lease)
                namespace.release_slots(lease)

        spent_s = {"store": 0.0, "load": 0.0}
        reference_s = 0.0
        rows = _rows(memory, chunks)
        for repeat in range(repeats):
            keys = random_keys(chunks, seed=repeat)
            for direction, work in (("store", store), ("load", load)):
                before_s = time.process_time() + process_cpu_s(daemon.process.pid)
                work(keys)
                spent_s[direction] += time.process_time() + process_cpu_s(daemon.process.pid) - before_s
            reference_s += native.copy_reference(rows, "memcpy", 1)[1]
        engine.close()
    moved_gb = total_bytes * repeats / 1e9
    return {way: Spent(spent / moved_gb, reference_s / moved_gb) for way, spent in spent_s.items()}


def _rows(memory: Arena, chunks: int) -> np.ndarray:
    starts = np.arange(chunks) * CHUNK_BYTES
    lengths = np.full(chunks, CHUNK_BYTES)
    return np.stack([memory.device_address + starts, memory.address + starts, lengths], axis=1).astype(
        np.uint64
    )
