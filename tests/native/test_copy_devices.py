"""Devices whose buffers move, from Python: buffers with every submit, load windows, what is refused."""

import numpy as np
import pytest

from tpu_sync_native import CopyEngine, FakeDevice

pytestmark = pytest.mark.timeout(60)

LONG_S = 30.0
PAGE, BLOCKS, PER_CHUNK = 4096, 16, 4
CHUNKS = BLOCKS // PER_CHUNK


class World:
    def __init__(self) -> None:
        self.random = np.random.default_rng(3)
        self.device = FakeDevice(piece_bytes_max=PER_CHUNK * PAGE, inflight_bytes_max=PER_CHUNK * PAGE)
        self.arena = np.zeros(BLOCKS * PAGE, np.uint8)
        self.engine = CopyEngine(
            None,
            threads=2,
            arena=memoryview(self.arena),
            backend=self.device.backend(),
            ready_deadline_ms=60_000,
        )
        self.buffers = [self.device.make_buffer(BLOCKS * PAGE)]
        self.device.write(self.buffers[0], self.random.bytes(BLOCKS * PAGE))
        self.layout = self.engine.add_layout([(0, PAGE, PAGE)], BLOCKS, PER_CHUNK)

    def submit(self, job: int, direction: str, buffers: list[int] | None) -> None:
        ids = np.arange(BLOCKS, dtype=np.int64)
        slots = np.arange(CHUNKS, dtype=np.uint32)
        refs = (slots, slots, slots.astype(np.uint64) * PER_CHUNK * PAGE)
        self.engine.submit(job, direction, [self.layout], [BLOCKS], ids, ids, refs, buffers)  # type: ignore[arg-type]

    def finish(self, job: int) -> bool:
        assert self.engine.wait([job], LONG_S)
        ((found, ok, _, _, _),) = self.engine.poll()
        assert found == job
        return ok

    def step(self, data: bytes) -> None:
        self.buffers = self.device.step(self.buffers, [(0, 0, data)])


def test_bytes_go_there_and_back_while_steps_replace_the_buffers() -> None:
    world = World()
    before = world.device.read(world.buffers[0])
    world.submit(1, "store", world.buffers)
    world.step(bytes(BLOCKS * PAGE))  # the store has the old buffer
    assert world.finish(1)
    assert world.arena.tobytes() == before
    world.submit(2, "load", None)
    assert not world.engine.wait([2], 0)
    while not world.engine.load_window(world.buffers, 0.0):
        world.step(b"")
    assert world.finish(2)
    assert world.device.read(world.buffers[0]) == before
    assert world.device.held() == 0
    assert world.engine.counters()["load_windows"] >= 1
    assert world.engine.load_window(world.buffers, LONG_S)  # nothing to do


def test_a_store_waits_for_the_step_before_it() -> None:
    world = World()
    world.device.pause("steps")
    written = world.random.bytes(PAGE)
    world.step(written)
    world.submit(1, "store", world.buffers)
    assert world.engine.counters()["fence_waits"] == 1
    assert not world.engine.wait([1], 0)
    world.device.resume("steps")
    assert world.finish(1)
    assert world.arena[:PAGE].tobytes() == written


def test_buffers_that_are_gone_fail_the_job() -> None:
    world = World()
    old = world.buffers
    world.step(b"")
    world.submit(1, "store", old)
    assert not world.finish(1)
    assert world.engine.counters()["refused_holds"] == 1
    world.submit(2, "load", None)
    assert not world.engine.load_window(old, 0.0)
    assert world.engine.load_window(world.buffers, LONG_S)
    assert world.finish(2)


def test_wrong_buffers_are_a_value_error() -> None:
    world = World()
    small = world.device.make_buffer(PAGE)
    for buffers, message in (
        ([], "buffer 0, which has 0 bytes"),
        ([small], "buffer 0, which has 4096 bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            world.submit(1, "store", buffers)
        world.submit(1, "load", None)
        with pytest.raises(ValueError, match=message):
            world.engine.load_window(buffers, 0.0)
        assert world.engine.load_window(world.buffers, LONG_S)
        assert world.finish(1)
    with pytest.raises(ValueError, match="buffers does not hold integers"):
        world.submit(2, "store", "buffers")  # type: ignore[arg-type]


def test_a_step_waits_for_no_more_than_is_in_flight() -> None:
    world = World()
    world.device.pause("copies")
    world.submit(1, "store", world.buffers)
    assert world.device.await_queued("copies", 1)
    world.step(b"")
    world.device.resume("copies")
    assert world.finish(1)
    assert world.device.await_idle("steps")
    (step,) = (op for op in world.device.log() if op[0] == "step")
    piece_ns = 1_000 + PER_CHUNK * PAGE * 1_000 // 10_000
    assert 0 < step[4] <= piece_ns
