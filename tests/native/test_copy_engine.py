"""CopyEngine from Python: bytes against a numpy model, bounds, lost slots, the life of an engine."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_host import Host, keys

from tpu_sync_native import CopyEngine, copy_reference

pytestmark = pytest.mark.timeout(120)

ARENA_BYTES = 1 << 20
LONG_S = 60.0


@dataclass
class Group:
    """One layout. Tensors have shape (num_blocks, stride_bytes), of which a page is used."""

    tensors: list[np.ndarray]
    pages: list[int]
    blocks_per_chunk: int
    chunk_offset: int

    @property
    def chunk_bytes(self) -> int:
        return sum(self.pages) * self.blocks_per_chunk

    def add_to(self, engine: CopyEngine) -> int:
        regions = [
            (tensor.ctypes.data, tensor.shape[1], page)
            for tensor, page in zip(self.tensors, self.pages, strict=True)
        ]
        return engine.add_layout(regions, len(self.tensors[0]), self.blocks_per_chunk, self.chunk_offset)

    def places(self, position: int, offsets: np.ndarray) -> Iterator[tuple[np.ndarray, int, slice]]:
        """Per region: the tensor, its page size and where the block at `position` lies in the arena."""
        chunk, block = divmod(position, self.blocks_per_chunk)
        start = int(offsets[chunk]) + self.chunk_offset
        for tensor, page in zip(self.tensors, self.pages, strict=True):
            at = start + block * page
            yield tensor, page, slice(at, at + page)
            start += page * self.blocks_per_chunk


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Random geometries, blocks and places; no block and no place twice in one job."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        num_blocks = draw(st.integers(1, 24))
        pages = draw(st.lists(st.sampled_from([1, 7, 64, 100, 1024, 2048, 4096]), min_size=1, max_size=4))
        gaps = [draw(st.sampled_from([0, 0, 0, 3, 64])) for _ in pages]
        tensors = [
            random.integers(0, 256, (num_blocks, page + gap), dtype=np.uint8)
            for page, gap in zip(pages, gaps, strict=True)
        ]
        groups.append(Group(tensors, pages, draw(st.integers(1, 4)), draw(st.sampled_from([0, 64, 100]))))
    slot_bytes = max(group.chunk_offset + group.chunk_bytes for group in groups)
    slots = min(ARENA_BYTES // slot_bytes, 16)
    chunks = draw(st.integers(1, slots))
    order = random.permutation(slots)[:chunks] if draw(st.booleans()) else np.arange(chunks)
    offsets = (order * slot_bytes).astype(np.uint64)
    ids, positions, sizes = [], [], []
    # The chunks are dealt out to the groups: a chunk belongs to one namespace, so to one group.
    owner = random.integers(0, len(groups), chunks)
    for number, group in enumerate(groups):
        free = [
            chunk * group.blocks_per_chunk + block
            for chunk in np.flatnonzero(owner == number)
            for block in range(group.blocks_per_chunk)
        ]
        count = min(len(free), len(group.tensors[0]), draw(st.integers(0, 24)))
        if draw(st.booleans()):  # runs
            first = draw(st.integers(0, len(group.tensors[0]) - count))
            ids += range(first, first + count)
            positions += free[:count]
        else:
            ids += random.permutation(len(group.tensors[0]))[:count].tolist()
            positions += random.permutation(free)[:count].tolist() if free else []
        sizes.append(count)
    return {"groups": groups, "offsets": offsets, "ids": ids, "positions": positions, "sizes": sizes}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=jobs(), load=st.booleans(), threads=st.integers(1, 3))
def test_bytes_are_those_of_a_plain_model(job: dict[str, Any], load: bool, threads: int) -> None:
    random = np.random.default_rng(1)
    arena = random.integers(0, 256, ARENA_BYTES, dtype=np.uint8)
    expected_arena = arena.copy()
    expected = [[tensor.copy() for tensor in group.tensors] for group in job["groups"]]
    at = 0
    for group, size, model in zip(job["groups"], job["sizes"], expected, strict=True):
        for block, position in zip(job["ids"][at : at + size], job["positions"][at : at + size], strict=True):
            for target, (tensor, page, place) in zip(
                model, group.places(position, job["offsets"]), strict=True
            ):
                if load:
                    target[block, :page] = arena[place]
                else:
                    expected_arena[place] = tensor[block, :page]
        at += size

    engine = CopyEngine(None, threads=threads, arena=memoryview(arena))
    layouts = [group.add_to(engine) for group in job["groups"]]
    chunks = len(job["offsets"])
    refs = (np.zeros(chunks, np.uint32), np.zeros(chunks, np.uint32), job["offsets"])
    ids, positions = np.array(job["ids"], np.int64), np.array(job["positions"], np.int64)
    engine.submit(7, "load" if load else "store", layouts, job["sizes"], ids, positions, refs)
    assert engine.wait([7], LONG_S)
    moved = sum(sum(group.pages) * size for group, size in zip(job["groups"], job["sizes"], strict=True))
    [(number, ok, count, seconds, valid)] = engine.poll()
    assert (number, ok, count, valid) == (7, True, moved, chunks)
    assert seconds >= 0
    engine.close()
    np.testing.assert_array_equal(arena, expected_arena)
    for group, model in zip(job["groups"], expected, strict=True):
        for tensor, target in zip(group.tensors, model, strict=True):
            np.testing.assert_array_equal(tensor, target)


# ---- with a store: slots that are taken away ----

PAGE = 4096
PER_CHUNK = 4
CHUNK = PAGE * PER_CHUNK


class Rig:
    """A session of a served store, a device of 64 blocks, an engine between them."""

    def __init__(self, host: Host) -> None:
        self.store = host.store
        self.ns = host.store.open_namespace(b"n" * 16, CHUNK)
        _, self.session = host.attach()
        self.device = np.random.default_rng(5).integers(0, 256, (64, PAGE), dtype=np.uint8)
        self.engine = CopyEngine(self.session, threads=2)
        self.layout = self.engine.add_layout([(self.device.ctypes.data, PAGE, PAGE)], 64, PER_CHUNK)

    def submit(self, job: int, direction: Any, refs: Any, blocks: int) -> None:
        ids = np.arange(blocks, dtype=np.int64)
        self.engine.submit(job, direction, [self.layout], [blocks], ids, ids, refs)

    def finish(self, job: int) -> tuple[bool, int, int]:
        assert self.engine.wait([job], LONG_S)
        [(number, ok, moved, _, valid)] = self.engine.poll()
        assert number == job
        return ok, moved, valid

    def store_all(self, chunks: int) -> None:
        write = self.session.reserve(self.ns, keys(0, chunks))
        self.submit(1, "store", write.refs, chunks * PER_CHUNK)
        assert self.finish(1) == (True, chunks * CHUNK, chunks)
        assert self.session.commit(write.lease)


@pytest.fixture
def rig(host: Host) -> Iterator[Rig]:
    made = Rig(host)
    yield made
    made.engine.close()


def test_a_round_trip_through_leases(rig: Rig) -> None:
    rig.store_all(16)
    original = rig.device.copy()
    rig.device[:] = 0
    read = rig.session.lease(rig.ns, keys(0, 16))
    rig.submit(2, "load", read.refs, 64)
    assert rig.finish(2) == (True, 16 * CHUNK, 16)
    np.testing.assert_array_equal(rig.device, original)
    rig.session.release(read.lease)
    assert rig.engine.counters()["load_bytes"] == rig.engine.counters()["store_bytes"] == 16 * CHUNK


def test_a_load_from_evicted_slots_fails(rig: Rig) -> None:
    rig.store_all(16)
    read = rig.session.lease(rig.ns, keys(0, 16))
    rig.session.release(read.lease)
    rig.session.ping()
    assert rig.store.evict(rig.ns, 16 * CHUNK) == 16 * CHUNK
    rig.submit(2, "load", read.refs, 64)
    assert rig.finish(2) == (False, 0, 0)
    assert rig.engine.counters()["failed_jobs"] == 1


def test_a_wrong_generation_fails_from_its_chunk_on(rig: Rig) -> None:
    rig.store_all(8)
    read = rig.session.lease(rig.ns, keys(0, 8))
    generations = read.refs.generations.copy()
    generations[5] += 1
    before = rig.device.copy()
    rig.device[:] = 0
    rig.submit(2, "load", (read.refs.slots, generations, read.refs.offsets), 8 * PER_CHUNK)
    assert rig.finish(2) == (False, 7 * CHUNK, 5)
    assert not rig.device[5 * PER_CHUNK : 6 * PER_CHUNK].any()  # never copied
    np.testing.assert_array_equal(rig.device[6 * PER_CHUNK : 32], before[6 * PER_CHUNK : 32])
    rig.session.release(read.lease)


def test_a_store_does_not_write_into_a_strangers_slot(rig: Rig) -> None:
    write = rig.session.reserve(rig.ns, keys(0, 1))
    rig.session.abort(write.lease)
    rig.session.ping()
    rig.submit(1, "store", write.refs, PER_CHUNK)
    assert rig.finish(1) == (False, 0, 0)


def test_churn_never_passes_wrong_bytes_as_right(host: Host) -> None:
    """Slots are evicted and given to other content while loads run: a load that says ok has its own bytes."""
    rig = Rig(host)
    stop = threading.Event()
    _, other = host.attach()

    def churn() -> None:
        fill = 0
        while not stop.is_set():
            fill += 1
            rig.store.evict(rig.ns, 16 * CHUNK)
            write = other.reserve(rig.ns, keys(1000, 16))
            for offset in write.refs.offsets:
                other.view(int(offset), CHUNK, True)[:] = bytes([fill % 251]) * CHUNK
            if write.lease:
                other.commit(write.lease)

    thread = threading.Thread(target=churn)
    thread.start()
    outcomes = set()
    try:
        deadline = time.monotonic() + 5
        job = 100
        while time.monotonic() < deadline and len(outcomes) < 2:
            read = rig.session.lease(rig.ns, keys(1000, 16))
            if read.count < 16:
                continue
            rig.session.release(read.lease)  # from here on only the generation protects
            job += 1
            rig.submit(job, "load", read.refs, 64)
            ok, _, valid = rig.finish(job)
            outcomes.add(ok)
            for chunk in range(valid):
                rows = rig.device[chunk * PER_CHUNK : (chunk + 1) * PER_CHUNK]
                assert (rows == rows[0, 0]).all(), "a torn chunk was called valid"
    finally:
        stop.set()
        thread.join(30)
        rig.engine.close()
    assert outcomes


# ---- life ----


@pytest.fixture
def plain() -> Iterator[tuple[CopyEngine, int, np.ndarray]]:
    arena, device = np.zeros(64 << 20, np.uint8), np.ones((64, 1 << 20), np.uint8)
    engine = CopyEngine(None, threads=2, arena=memoryview(arena))
    yield engine, engine.add_layout([(device.ctypes.data, 1 << 20, 1 << 20)], 64, 4), arena
    engine.close()
    del device


def submit_all(engine: CopyEngine, layout: int, job: int, direction: Any = "store", **changes: Any) -> None:
    ids = np.arange(64, dtype=np.int64)
    chunk = np.arange(16)
    arguments: dict[str, Any] = {
        "layouts": [layout],
        "group_sizes": [64],
        "block_ids": ids,
        "block_positions": ids,
        "refs": (chunk.astype(np.uint32), chunk.astype(np.uint32), (chunk * (4 << 20)).astype(np.uint64)),
    }
    engine.submit(job, direction, **(arguments | changes))


Plain = tuple[CopyEngine, int, np.ndarray]


def test_close_finishes_what_was_submitted(plain: Plain) -> None:
    engine, layout, arena = plain
    for job in range(5):
        submit_all(engine, layout, job)
    engine.close()
    assert sorted(row[0] for row in engine.poll()) == [0, 1, 2, 3, 4]
    assert (arena == 1).all()
    with pytest.raises(RuntimeError, match="closed"):
        submit_all(engine, layout, 6)
    engine.close()


def test_others_run_while_one_waits(plain: Plain) -> None:
    engine, layout, _ = plain
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for job in range(8):
            submit_all(engine, layout, job)
        before = counted
        assert engine.wait(range(8), LONG_S)
        assert counted > before  # the GIL was free
    finally:
        done.set()
        thread.join()


def test_a_wait_keeps_its_deadline(plain: Plain) -> None:
    engine, layout, _ = plain
    for job in range(40):
        submit_all(engine, layout, job)
    began = time.monotonic()
    assert not engine.wait([39], 0.0)
    assert time.monotonic() - began < 5
    assert engine.pending() > 0
    assert engine.wait(range(40), LONG_S)
    assert engine.pending() == 0


def test_a_job_in_flight_is_not_submitted_twice(plain: Plain) -> None:
    engine, layout, _ = plain
    for job in range(20):
        submit_all(engine, layout, job)
    with pytest.raises(ValueError, match="job 19 is still in flight"):
        submit_all(engine, layout, 19)
    assert engine.wait(range(20), LONG_S)
    engine.poll()
    submit_all(engine, layout, 19)
    assert engine.wait([19], LONG_S)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layouts": [9]}, "layouts has 9"),
        ({"group_sizes": [63]}, "group_sizes"),
        ({"block_ids": np.full(64, 64)}, "block_ids has 64"),
        ({"block_ids": np.full(64, -1)}, "block_ids has -1"),
        ({"block_ids": np.zeros(64)}, "block_ids does not hold integers"),
        ({"block_positions": np.full(64, 64)}, "block_positions has 64"),
        ({"block_positions": np.full(64, -(2**62))}, "block_positions"),
        (
            {"refs": (np.zeros(16, np.uint32), np.zeros(15, np.uint32), np.zeros(16, np.uint64))},
            "same number",
        ),
        ({"refs": (np.zeros(16), np.zeros(16), np.full(16, 2**64 - 1, np.uint64))}, "does not hold integers"),
        (
            {"refs": (np.zeros(16, int), np.zeros(16, int), np.full(16, 2**64 - 1, np.uint64))},
            "outside the arena",
        ),
        ({"refs": ([], [], [])}, "block_positions has 0"),
        ({"refs": (1, 2)}, "refs must be"),
        ({"direction": "sideways"}, "direction is 'sideways'"),
    ],
)
def test_bad_input_is_a_value_error(plain: Plain, changes: dict[str, Any], message: str) -> None:
    engine, layout, arena = plain
    with pytest.raises(ValueError, match=message):
        submit_all(engine, layout, 1, **changes)
    assert engine.pending() == 0
    assert not arena.any()


@pytest.mark.parametrize(
    ("regions", "num_blocks", "per_chunk", "offset", "message"),
    [
        ([], 1, 1, 0, "regions is empty"),
        ([(4096, 10, 20)], 1, 1, 0, "below page_bytes"),
        ([(4096, 2**40, 2**40)], 2**40, 1, 0, "too large"),
        ([(4096, 1 << 20, 1 << 20)], 1, 65, 0, "does not fit an arena"),
        ([(4096, 8, 8)], 1, 1, (64 << 20) - 7, "does not fit an arena"),
    ],
)
def test_a_layout_that_does_not_fit_is_a_value_error(
    plain: Plain, regions: Any, num_blocks: int, per_chunk: int, offset: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plain[0].add_layout(regions, num_blocks, per_chunk, offset)


def test_a_forked_child_is_refused(plain: Plain) -> None:
    engine, layout, _ = plain
    submit_all(engine, layout, 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            submit_all(engine, layout, 2)
        except RuntimeError as error:
            code = 42 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert engine.wait([1], LONG_S)


def test_threads_have_names(plain: Plain) -> None:
    tasks = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert {"kvt-copy-0", "kvt-copy-1"} <= set(tasks)


def test_an_engine_without_work_burns_no_core(plain: Plain) -> None:
    engine, layout, _ = plain
    submit_all(engine, layout, 1)
    assert engine.wait([1], LONG_S)
    before = engine.counters()["cpu_ns"]
    time.sleep(0.3)  # the time that is measured
    assert engine.counters()["cpu_ns"] - before < 3_000_000


def test_what_it_says_of_itself(plain: Plain) -> None:
    can = plain[0].capabilities()
    assert can["name"] == "host"
    assert can["plain_memory"] is True
    assert can["kernel"] in {"avx512", "avx2", "sse2", "memcpy"}


def test_copy_and_its_reference_move_rows() -> None:
    source = np.random.default_rng(3).integers(0, 256, 4 << 20, dtype=np.uint8)
    target = np.zeros_like(source)
    half = len(source) // 2
    rows = np.array(
        [
            (source.ctypes.data, target.ctypes.data + half, half),
            (source.ctypes.data + half, target.ctypes.data, half),
        ],
        np.uint64,
    )
    swapped = np.concatenate([source[half:], source[:half]])
    engine = CopyEngine(None, threads=2, arena=memoryview(target))
    engine.copy(rows)
    np.testing.assert_array_equal(target, swapped)
    for method in ("memcpy", "non_temporal"):
        target[:] = 0
        wall_s, cpu_s = copy_reference(rows, method, 2)
        np.testing.assert_array_equal(target, swapped)
        assert wall_s > 0
        assert cpu_s > 0
    with pytest.raises(ValueError, match="shape"):
        engine.copy(np.zeros((2, 2), np.uint64))
    engine.close()


def test_a_session_or_an_arena_not_both(host: Host) -> None:
    _, session = host.attach()
    with pytest.raises(ValueError, match="exclude"):
        CopyEngine(session, arena=memoryview(bytearray(10)))
    with pytest.raises(TypeError, match="session must be"):
        CopyEngine("session")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads is -1"):
        CopyEngine(session, threads=-1)
