"""How fast do bytes move between an engine's blocks and the arena, and what do they cost?

The copy engine stores and loads chunks between plain memory (the device of the host backend) and a shared
memory file, chunks at random places, on one core and on all. A chunk has 16 blocks; its blocks lie together
on the device as a prompt's blocks do in a fresh engine. `scattered` takes single blocks of 16 KiB instead.

References of the same run, in turns with the engine: the same extents copied by plain threads with memcpy,
and with non-temporal stores; the better one counts. Of every side the best round counts: memory bandwidth
belongs to the whole machine. The last cases move chunks through a real daemon (reserve, store, commit; lease,
load, release) and count the CPU time of both processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from kvtier.bench import clock, machine
from kvtier.bench.copy_arena import Arena
from kvtier.bench.copy_daemon import cpu_per_gb
from kvtier.bench.report import Budget, Result
from kvtier.bench.scale import Scale
from kvtier.io import native

Direction = Literal["store", "load"]
Method = Literal["memcpy", "non_temporal"]

BLOCKS_PER_CHUNK: Final = 16
CHUNK_BYTES: Final = (256 << 10, 1 << 20, 2 << 20, 8 << 20)
SCATTERED_BYTES: Final = 16 << 10
BEST_COPY: Final = Budget(0.95, of="ratio", side=">=")
CPU: Final = Budget(0.25)
_TIMEOUT_S: Final = 120.0
_DIRECTIONS: Final[tuple[Direction, ...]] = ("store", "load")
_REFERENCES: Final[tuple[Method, ...]] = ("memcpy", "non_temporal")


@dataclass(frozen=True)
class _Plan:
    """One job that moves every byte of the arena once, and the same as plain rows."""

    layout: int
    blocks: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    refs: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.uint64]]
    rows: dict[Direction, npt.NDArray[np.uint64]]  # by direction


def run(scale: Scale) -> list[Result]:
    """Chunk sizes, on one core and on all; then the daemon's share."""
    total_bytes = scale.pick(32 << 20, 256 << 20)
    rounds = scale.pick(2, 21)
    results = []
    with Arena(total_bytes) as arena:
        for threads in sorted({1, machine.cores()}):
            engine = native.CopyEngine(None, threads=threads, arena=arena.view)
            for chunk_bytes in (*CHUNK_BYTES, SCATTERED_BYTES):
                results += _measure(engine, arena, chunk_bytes, threads, rounds)
            engine.close()
    return results + _daemon_results(scale)


def _daemon_results(scale: Scale) -> list[Result]:
    spent = cpu_per_gb(scale)
    return [
        Result(
            f"{what}, 2 MiB chunks through a daemon", value, "CPU s/GB", "memcpy, 1 core", spent.memcpy, CPU
        )
        for what, value in (
            ("store", spent.store),
            ("load", spent.load),
            ("first store into a fresh map", spent.first_store),
        )
    ]


def _plan(engine: native.CopyEngine, arena: Arena, chunk_bytes: int) -> _Plan:
    scattered = chunk_bytes == SCATTERED_BYTES
    per_chunk = 1 if scattered else BLOCKS_PER_CHUNK
    page_bytes = chunk_bytes // per_chunk
    chunks = arena.total_bytes // chunk_bytes
    random = np.random.default_rng(1)
    sources, targets = random.permutation(chunks), random.permutation(chunks)
    layout = engine.add_layout(
        [(arena.device_address, page_bytes, page_bytes)], chunks * per_chunk, per_chunk
    )
    blocks = (sources[:, None] * per_chunk + np.arange(per_chunk)).ravel().astype(np.int64)
    device = arena.device_address + sources * chunk_bytes
    slots = arena.address + targets * chunk_bytes
    lengths = np.full(chunks, chunk_bytes)
    none = np.zeros(chunks, np.uint32)
    return _Plan(
        layout=layout,
        blocks=blocks,
        positions=np.arange(chunks * per_chunk, dtype=np.int64),
        refs=(none, none, (targets * chunk_bytes).astype(np.uint64)),
        rows={
            "store": np.stack([device, slots, lengths], axis=1).astype(np.uint64),
            "load": np.stack([slots, device, lengths], axis=1).astype(np.uint64),
        },
    )


def _measure(
    engine: native.CopyEngine, arena: Arena, chunk_bytes: int, threads: int, rounds: int
) -> list[Result]:
    plan = _plan(engine, arena, chunk_bytes)
    measures: dict[tuple[Direction, str], Callable[[], float]] = {}
    for direction in _DIRECTIONS:
        measures[direction, "engine"] = partial(_engine_gbps, engine, plan, direction, arena.total_bytes)
        for method in _REFERENCES:
            rows = plan.rows[direction]
            measures[direction, method] = partial(_reference_gbps, rows, method, threads, arena.total_bytes)
    gbps = {name: max(values) for name, values in clock.in_turns(measures, rounds).items()}
    scattered = chunk_bytes == SCATTERED_BYTES
    budget = BEST_COPY if threads == machine.cores() and not scattered else None
    what = "scattered blocks of 16 KiB" if scattered else f"chunks of {chunk_bytes >> 10} KiB"
    results = []
    for direction in _DIRECTIONS:
        best, best_gbps = max(
            ((method, gbps[direction, method]) for method in _REFERENCES), key=lambda pair: pair[1]
        )
        case = f"{direction}, {what}, {threads} {'core' if threads == 1 else 'cores'}"
        value = gbps[direction, "engine"]
        results.append(Result(case, value, "GB/s", best.replace("_", "-"), best_gbps, budget))
    return results


def _reference_gbps(rows: npt.NDArray[np.uint64], method: Method, threads: int, total_bytes: int) -> float:
    return total_bytes / native.copy_reference(rows, method, threads)[0] / 1e9


def _engine_gbps(engine: native.CopyEngine, plan: _Plan, direction: Direction, total_bytes: int) -> float:
    engine.submit(1, direction, [plan.layout], [len(plan.blocks)], plan.blocks, plan.positions, plan.refs)
    if not engine.wait([1], _TIMEOUT_S):
        raise TimeoutError(f"a copy of {total_bytes} bytes took more than {_TIMEOUT_S:g} s")
    [(_, _, moved, seconds, _)] = engine.poll()
    return moved / seconds / 1e9
