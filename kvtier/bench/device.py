"""How fast do blocks move between a device and the arena, at what cost, and what does a step feel of it?

Once for each device that is here: `host` (plain memory), `fake` (plain memory behind buffers and one queue
in order), `pjrt` (torch tensors on device "tpu": with the plugin that TPU_LIBRARY_PATH names, in an
environment that has torch_tpu), `cuda` (the first GPU). What is not here is named on standard error.

- Bandwidth, by chunk size and layout: block-major (one tensor; a chunk of 16 blocks is one run) and
  layer-major (8 tensors; a chunk is 8 runs). One thread copies on either side; where the
  device copies, two give it pieces. Reference: the same runs in plain
  memory by memcpy, in turns with the engine; for `host`, whose engine has them, also by non-temporal stores,
  the better one; for `cuda`, whose bus is another, one run of everything.
- Issue cost: what `submit` takes of its caller for each of 1024 blocks that are copies of their own, with
  asking the runtime for the buffers where it has them. Reference: memcpy of such a block, 64 KiB.
- Completion: from the end of a copy until its submitter knows, spinning on `poll` or asleep in `wait`; the
  way into `submit` is in it. Reference: a round trip over a Unix socket.
- Delay of a launch: what is ahead of it in a queue that copies and launches share, in the fake device's own
  time, with at most 2 MiB in flight. Reference: the same without that bound.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from kvtier.bench import clock, device_pacing
from kvtier.bench.copy_arena import Arena
from kvtier.bench.device_stands import Memory, Stand, stands
from kvtier.bench.report import Budget, Result
from kvtier.bench.scale import Scale
from kvtier.bench.socket_peer import SocketPeer
from kvtier.io import native

Direction = Literal["store", "load"]
Layout = Literal["block-major", "layer-major"]
Method = Literal["memcpy", "non_temporal"]

CHUNK_BYTES: Final = (64 << 10, 512 << 10, 2 << 20)
BLOCKS_PER_CHUNK: Final = 16
LAYERS: Final = 8
ISSUE_BLOCK_BYTES: Final = 64 << 10
BEST_COPY: Final = Budget(0.9, of="ratio", side=">=")
ISSUE: Final = Budget(0.3)
SEEN: Final = {"poll": Budget(10), "wait": Budget(50)}
_DIRECTIONS: Final[tuple[Direction, ...]] = ("store", "load")
_LAYOUTS: Final[tuple[Layout, ...]] = ("block-major", "layer-major")
_REFERENCES: Final[dict[str, tuple[Method, ...]]] = {"host": ("memcpy", "non_temporal")}
_THREADS: Final = {"host": 1}  # a thread of another device gives a piece and waits for it
_REQUEST_BYTES: Final = 64
_TIMEOUT_S: Final = 60.0
_WINDOW_S: Final = 1.0


@dataclass
class _Lane:
    """A device's memory of one layout, an engine, and the jobs between them."""

    engine: native.CopyEngine
    memory: Memory
    layout: int
    windows: bool  # loads are copied in load windows
    job: int = 0

    def submit(
        self,
        direction: Direction,
        blocks: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.uint64],
    ) -> int:
        """One job; returns its number."""
        self.job += 1
        none = np.zeros(len(offsets), np.uint32)
        refs = (none, none, offsets)
        self.engine.submit(
            self.job, direction, [self.layout], [len(blocks)], blocks, positions, refs,
            buffers=self.memory.buffers(),
        )  # fmt: skip
        return self.job

    def finish(self, job: int, direction: Direction) -> float:
        """Until it has ended; its seconds."""
        buffers = self.memory.buffers()
        if self.windows and direction == "load" and buffers is not None:
            while not self.engine.load_window(buffers, _WINDOW_S):
                pass
        if not self.engine.wait([job], _TIMEOUT_S):
            raise TimeoutError(f"a copy took more than {_TIMEOUT_S:g} s")
        [(_, ok, _, seconds, _)] = self.engine.poll()
        if not ok:
            raise RuntimeError("a copy failed")
        return seconds


def run(scale: Scale) -> list[Result]:
    """Every device that is here, then the delay of a launch."""
    results = []
    with SocketPeer(_REQUEST_BYTES) as peer, Arena(scale.pick(32 << 20, 64 << 20)) as arena:
        for stand in stands(arena.device_address, _absent):
            for layout in _LAYOUTS:
                for chunk_bytes in CHUNK_BYTES:
                    results += _bandwidth(stand, arena, layout, chunk_bytes, scale.pick(1, 15))
            results += _costs(stand, arena, peer, scale.pick(3, 200))
        paced, unpaced = (device_pacing.launch_delay_us(arena, bound) for bound in (True, False))
    bound = Budget(device_pacing.bound_us())
    what = f"launch behind copies, {device_pacing.INFLIGHT_BYTES >> 20} MiB in flight"
    return [*results, Result(what, paced, "us", "no bound", unpaced, bound)]


def _absent(name: str, reason: str) -> None:
    sys.stderr.write(f"kvtier: bench device: {name} was not run: {reason}\n")


def _lane(stand: Stand, arena: Arena, parts: int, chunk_bytes: int, per_chunk: int) -> _Lane:
    memory = stand.memory(parts, arena.total_bytes // parts)
    engine = native.CopyEngine(
        None, threads=_THREADS.get(stand.name, 2), arena=arena.view, backend=stand.backend()
    )
    page_bytes = chunk_bytes // per_chunk // parts
    regions = [(address, page_bytes, page_bytes) for address in memory.addresses]
    layout = engine.add_layout(regions, arena.total_bytes // chunk_bytes * per_chunk, per_chunk)
    return _Lane(engine, memory, layout, engine.capabilities()["replaces_buffers"])


def _bandwidth(stand: Stand, arena: Arena, layout: Layout, chunk_bytes: int, rounds: int) -> list[Result]:
    parts = 1 if layout == "block-major" else LAYERS
    lane = _lane(stand, arena, parts, chunk_bytes, BLOCKS_PER_CHUNK)
    chunks = arena.total_bytes // chunk_bytes
    random = np.random.default_rng(1)
    sources, targets = random.permutation(chunks), random.permutation(chunks)
    blocks = (sources[:, None] * BLOCKS_PER_CHUNK + np.arange(BLOCKS_PER_CHUNK)).ravel()
    positions = np.arange(chunks * BLOCKS_PER_CHUNK, dtype=np.int64)
    offsets = (targets * chunk_bytes).astype(np.uint64)
    rows = _rows(arena, sources, targets, chunk_bytes, parts)

    measures: dict[tuple[Direction, str], Callable[[], float]] = {}
    for direction in _DIRECTIONS:
        measures[direction, "engine"] = partial(
            _engine_gbps, lane, direction, blocks, positions, offsets, arena.total_bytes
        )
        if stand.name == "cuda":
            whole = (np.arange(chunks) * chunk_bytes).astype(np.uint64)
            measures[direction, "one run"] = partial(
                _engine_gbps, lane, direction, positions, positions, whole, arena.total_bytes
            )
            continue
        for method in _REFERENCES.get(stand.name, ("memcpy",)):
            measures[direction, method] = partial(_reference_gbps, rows[direction], method, arena)
    gbps = {name: max(values) for name, values in clock.in_turns(measures, rounds).items()}
    lane.engine.close()
    results = []
    for direction in _DIRECTIONS:
        best, best_gbps = max(
            ((way, value) for (of, way), value in gbps.items() if of == direction and way != "engine"),
            key=lambda pair: pair[1],
        )
        case = f"{stand.name}: {direction}, {layout}, {chunk_bytes >> 10} KiB"
        budget = BEST_COPY if stand.name != "fake" and chunk_bytes > CHUNK_BYTES[0] else None
        value = gbps[direction, "engine"]
        results.append(Result(case, value, "GB/s", best.replace("_", "-"), best_gbps, budget))
    return results


def _rows(
    arena: Arena,
    sources: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    chunk_bytes: int,
    parts: int,
) -> dict[Direction, npt.NDArray[np.uint64]]:
    """The runs of all chunks as plain copies."""
    run_bytes, part_bytes = chunk_bytes // parts, arena.total_bytes // parts
    part = np.arange(parts)
    device = (arena.device_address + part * part_bytes + sources[:, None] * run_bytes).ravel()
    slots = (arena.address + targets[:, None] * chunk_bytes + part * run_bytes).ravel()
    lengths = np.full(len(device), run_bytes)
    return {
        "store": np.stack([device, slots, lengths], axis=1).astype(np.uint64),
        "load": np.stack([slots, device, lengths], axis=1).astype(np.uint64),
    }


def _reference_gbps(rows: npt.NDArray[np.uint64], method: Method, arena: Arena) -> float:
    return arena.total_bytes / native.copy_reference(rows, method, 1)[0] / 1e9


def _engine_gbps(
    lane: _Lane,
    direction: Direction,
    blocks: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.uint64],
    total_bytes: int,
) -> float:
    return total_bytes / lane.finish(lane.submit(direction, blocks, positions, offsets), direction) / 1e9


def _costs(stand: Stand, arena: Arena, peer: SocketPeer, rounds: int) -> list[Result]:
    lane = _lane(stand, arena, 1, ISSUE_BLOCK_BYTES, 1)
    count = arena.total_bytes // ISSUE_BLOCK_BYTES
    blocks = np.random.default_rng(1).permutation(count)
    positions = np.arange(count, dtype=np.int64)
    offsets = positions.astype(np.uint64) * ISSUE_BLOCK_BYTES
    rows = _rows(arena, blocks, positions, ISSUE_BLOCK_BYTES, 1)["store"]
    copy_us = min(native.copy_reference(rows, "memcpy", 1)[0] for _ in range(3)) / count * 1e6

    issue_us = []
    for _ in range(max(3, rounds // 10)):
        began_ns = time.perf_counter_ns()
        job = lane.submit("store", blocks, positions, offsets)
        issue_us.append((time.perf_counter_ns() - began_ns) / 1e3 / count)
        lane.finish(job, "store")
    name = stand.name
    results = [
        Result(
            f"{name}: submit, each of {count} blocks", clock.median(issue_us), "us",
            "memcpy of a block", copy_us, None if name == "fake" else ISSUE,
        )
    ]  # fmt: skip
    round_trip_us = clock.p50_us(peer.round_trip, rounds)
    first = positions[:1]
    for way, budget in SEEN.items():
        seen_us = [_seen_us(lane, way, blocks[:1], first, offsets[:1]) for _ in range(rounds)]
        case = f"{name}: end of a copy to {way}"
        results.append(Result(case, clock.median(seen_us), "us", "Unix socket", round_trip_us, budget))
    lane.engine.close()
    return results


def _seen_us(
    lane: _Lane,
    way: str,
    blocks: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.uint64],
) -> float:
    """From a job's last byte until its submitter knows."""
    before_ns = time.perf_counter_ns()
    job = lane.submit("store", blocks, positions, offsets)
    done: list[tuple[int, bool, int, float, int]] = []
    if way == "wait":
        lane.engine.wait([job], _TIMEOUT_S)
    while not done:
        done = lane.engine.poll()
    elapsed_us = (time.perf_counter_ns() - before_ns) / 1e3
    [(_, _, _, seconds, _)] = done
    return max(elapsed_us - seconds * 1e6, 0.0)
