"""CopyEngine from Python: bytes against a numpy model, bounds, lost slots, the life of an engine."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_host import Host, keys

from tpu_sync_native import CopyEngine

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


def test_a_store_does_not_write_into_a_readable_chunk(rig: Rig) -> None:
    rig.store_all(1)
    original = rig.device.copy()
    rig.device[:] = 0
    read = rig.session.lease(rig.ns, keys(0, 1))
    rig.submit(2, "store", read.refs, PER_CHUNK)
    assert rig.finish(2) == (False, 0, 0)
    rig.submit(3, "load", read.refs, PER_CHUNK)
    assert rig.finish(3) == (True, CHUNK, 1)
    np.testing.assert_array_equal(rig.device[:PER_CHUNK], original[:PER_CHUNK])
    rig.session.release(read.lease)


def test_a_layout_larger_than_the_chunk_is_refused(rig: Rig) -> None:
    write = rig.session.reserve(rig.ns, keys(0, 2))
    large = rig.engine.add_layout([(rig.device.ctypes.data, PAGE, PAGE)], 64, PER_CHUNK + 1)
    ids = np.arange(PER_CHUNK + 1)
    with pytest.raises(ValueError, match=f"takes {CHUNK + PAGE} bytes of a slot, whose chunk has {CHUNK}"):
        rig.engine.submit(1, "store", [large], [len(ids)], ids, ids, write.refs)
    moved = rig.engine.add_layout([(rig.device.ctypes.data, PAGE, PAGE)], 64, PER_CHUNK, chunk_offset=1)
    with pytest.raises(ValueError, match=f"takes {CHUNK + 1} bytes of a slot"):
        rig.engine.submit(1, "store", [moved], [PER_CHUNK], ids[:-1], ids[:-1], write.refs)
    assert rig.engine.pending() == 0
    # Nor does a slot start where the caller says it does.
    elsewhere = (write.refs.slots, write.refs.generations, write.refs.offsets + np.uint64(PAGE))
    rig.submit(1, "store", elsewhere, PER_CHUNK)
    assert rig.finish(1)[0] is False
    rig.session.abort(write.lease)


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
