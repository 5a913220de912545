"""The life of a copy engine: bounds, waiting, closing, forks, what it says of itself."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_host import Host

from tpu_sync_native import CopyEngine, copy_reference

pytestmark = pytest.mark.timeout(120)

LONG_S = 60.0


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


def test_plain_memory_needs_no_load_window(plain: Plain) -> None:
    engine, layout, _ = plain
    submit_all(engine, layout, 1, "load")
    assert engine.load_window([], 0.0)
    assert engine.wait([1], LONG_S)
    assert engine.counters()["load_windows"] == 0


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
        ({"buffers": [1, 2]}, "backend host has none"),
        ({"buffers": "two"}, "buffers does not hold integers"),
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
