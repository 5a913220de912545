"""Blocks between the arena and buffers behind PJRT, while compiled steps replace these buffers."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from pjrt_device import Plugin, Pool, engine_over

from tpu_sync_native import _core

PAGE = 4096
BLOCKS = 64
PER_CHUNK = 4
CHUNK = PAGE * PER_CHUNK


@pytest.fixture(scope="module")
def loaded() -> Plugin:
    return Plugin()


@pytest.fixture
def plugin(loaded: Plugin) -> Iterator[Plugin]:
    yield loaded
    for name in ("queue_gate", "donate_aliased", "launches_in_queue", "bytes_per_s", "strict"):
        loaded.set(name, 0)
    assert loaded.left() == {}


def refs(chunks: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.array(chunks, np.uint32),
        np.ones(len(chunks), np.uint32),
        np.array(chunks, np.uint64) * np.uint64(CHUNK),
    )


@pytest.mark.parametrize(
    "donate", [False, True], ids=["a step copies what is held", "a step writes in place"]
)
def test_blocks_travel_while_steps_go_on(plugin: Plugin, donate: bool) -> None:
    plugin.set("donate_aliased", int(donate))
    plugin.set("strict", 1)
    pool = Pool(plugin, BLOCKS, PAGE)
    arena = np.zeros(8 * CHUNK, np.uint8)
    engine = engine_over(plugin, arena)
    layout = engine.add_layout([(0, PAGE, PAGE)], BLOCKS, PER_CHUNK)
    before = plugin.ask("bytes_to_host"), plugin.ask("bytes_to_device")

    # Blocks 0 to 31 are computed one by one; a chunk is stored when its last block is launched.
    for block in range(32):
        pool.step(block)
        if block % PER_CHUNK == PER_CHUNK - 1:
            chunk = block // PER_CHUNK
            first = block - PER_CHUNK + 1
            engine.submit(
                chunk, "store", [layout], [PER_CHUNK], np.arange(first, block + 1), np.arange(PER_CHUNK),
                refs([chunk]), pool.handles,
            )  # fmt: skip
    assert engine.wait(list(range(8)), 30)
    done = {job: (ok, bytes_) for job, ok, bytes_, _, _ in engine.poll()}
    assert done == dict.fromkeys(range(8), (True, CHUNK))
    stored = pool.truth[:32].copy()
    assert np.array_equal(arena.reshape(32, PAGE), stored)

    # They come back into blocks 63 down to 32, while steps overwrite where they came from.
    targets = np.arange(63, 31, -1)
    engine.submit(99, "load", [layout], [32], targets, np.arange(32), refs(list(range(8))))
    pool.truth[targets] = stored
    for block in range(1000):
        pool.step(block % 32)
        engine.load_window(pool.handles, 0.0)
        if engine.wait([99], 0):
            break
    assert [row[:3] for row in engine.poll()] == [(99, True, 8 * CHUNK)]
    pool.step(0)
    assert np.array_equal(pool.read(), pool.truth)
    after = plugin.ask("bytes_to_host"), plugin.ask("bytes_to_device")
    assert (after[0] - before[0], after[1] - before[1]) == (8 * CHUNK, 8 * CHUNK)
    assert "arena mapped" in engine.capabilities()["kernel"]
    engine.close()


@pytest.mark.parametrize(
    "donate", [False, True], ids=["a step copies what is held", "a step writes in place"]
)
def test_what_is_held_under_a_later_step(plugin: Plugin, donate: bool) -> None:
    """A store that is still queued reads what it was given for, but for blocks that the step writes."""
    plugin.set("donate_aliased", int(donate))
    pool = Pool(plugin, BLOCKS, PAGE)
    stored = pool.truth[:PER_CHUNK].copy()
    arena = np.zeros(CHUNK, np.uint8)
    engine = engine_over(plugin, arena)
    layout = engine.add_layout([(0, PAGE, PAGE)], BLOCKS, PER_CHUNK)
    plugin.set("queue_gate", 1)
    blocks = np.arange(PER_CHUNK)
    engine.submit(1, "store", [layout], [PER_CHUNK], blocks, blocks, refs([0]), pool.handles)
    pool.step(2)
    plugin.set("queue_gate", 0)
    assert engine.wait([1], 30)
    assert [row[:2] for row in engine.poll()] == [(1, True)]
    if donate:
        stored[2] = pool.truth[2]
    assert np.array_equal(arena.reshape(PER_CHUNK, PAGE), stored)
    engine.close()


def launch_delay_s(plugin: Plugin, pool: Pool, inflight_bytes: int) -> float:
    """How long a step takes that is launched under a large store, on a queue that both share."""
    arena = np.zeros(pool.truth.size, np.uint8)
    engine = engine_over(
        plugin, arena, threads=16, in_order_queue=True, inflight_bytes_max=inflight_bytes,
        piece_bytes_max=min(inflight_bytes, 1 << 20),
    )  # fmt: skip
    blocks, page = pool.truth.shape
    layout = engine.add_layout([(0, page, page)], blocks, blocks)
    plugin.ask("inflight_bytes_max")
    one = (np.zeros(1, np.uint32), np.ones(1, np.uint32), np.zeros(1, np.uint64))
    engine.submit(1, "store", [layout], [blocks], np.arange(blocks), np.arange(blocks), one, pool.handles)
    deadline = time.monotonic() + 30
    most = 0
    while most < inflight_bytes:
        assert time.monotonic() < deadline, f"only {most} bytes were ever under way"
        most = max(most, plugin.ask("inflight_bytes_max"))
    began = time.perf_counter()
    pool.step(0)
    delay = time.perf_counter() - began
    assert engine.wait([1], 30)
    engine.close()
    assert max(most, plugin.ask("inflight_bytes_max")) <= inflight_bytes
    return delay


def test_a_launch_waits_for_no_more_than_is_under_way(plugin: Plugin) -> None:
    plugin.set("donate_aliased", 1)  # else a step would copy the pool
    pool = Pool(plugin, 2048, 32 << 10)
    pool.step(1)  # compiled and warm
    plugin.set("launches_in_queue", 1)
    plugin.set("bytes_per_s", 100 << 20)
    much = launch_delay_s(plugin, pool, 16 << 20)
    little = launch_delay_s(plugin, pool, 1 << 20)
    assert little < much / 4, f"{little * 1e3:.0f} ms behind 1 MiB, {much * 1e3:.0f} ms behind 16 MiB"


def test_mapping_a_large_arena_stops_no_other_thread(plugin: Plugin) -> None:
    plugin.set("map_gate", 1)
    made: list[_core.CopyEngine] = []
    maker = threading.Thread(target=lambda: made.append(engine_over(plugin, np.zeros(CHUNK, np.uint8))))
    maker.start()
    while maker.is_alive() and not plugin.ask("maps_waiting"):
        pass
    plugin.set("map_gate", 0)
    maker.join(30)
    assert made[0].capabilities()["kernel"].endswith("arena mapped")
    made[0].close()


def test_a_failed_copy_fails_the_job_and_the_next_works(plugin: Plugin) -> None:
    pool = Pool(plugin, BLOCKS, PAGE)
    arena = np.zeros(CHUNK, np.uint8)
    engine = engine_over(plugin, arena)
    layout = engine.add_layout([(0, PAGE, PAGE)], BLOCKS, PER_CHUNK)
    for job, fault in enumerate(("fail:copy", "fail:ready", "fail:PJRT_Buffer_ReadyEvent", "")):
        if fault:
            plugin.set(fault, 1)
        engine.submit(
            job,
            "store",
            [layout],
            [PER_CHUNK],
            np.arange(PER_CHUNK),
            np.arange(PER_CHUNK),
            refs([0]),
            pool.handles,
        )
        assert engine.wait([job], 30)
        assert [row[:3] for row in engine.poll()] == [(job, not fault, 0 if fault else CHUNK)]
    assert np.array_equal(arena.reshape(PER_CHUNK, PAGE), pool.truth[:PER_CHUNK])
    engine.close()
