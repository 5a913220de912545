"""Two tensor-parallel workers, each with its part of every chunk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from threading import Event, Thread
from time import monotonic

import pytest
from engines import BYTES_PER_TOKEN, CHUNK_TOKENS, Engine, tokens
from harness import until
from hosts import Host
from storing import on_storage, restart_empty
from storing_hosts import spoil_segments, storing_host

PROMPT_TOKENS = 1400
WHOLE_CHUNKS = PROMPT_TOKENS // CHUNK_TOKENS
WHOLE_CHUNKS_BYTES = WHOLE_CHUNKS * CHUNK_TOKENS * BYTES_PER_TOKEN["dense"]


@pytest.fixture
def two_workers():
    """What an engine is started with to be two."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores: vLLM binds each worker to its own")
    return {
        "engine": {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
        "environment": {
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores)),
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # faults reach the workers as functions
        },
    }


SEEDS = count(100)
# A thread that only sleeps was seen to wait 10 s for a core here, as long as a load may wait for storage.
STARVED_S = 3.0


@dataclass
class Pauses:
    longest_s: float = 0.0


@contextmanager
def pauses() -> Iterator[Pauses]:
    """How long a thread that wants to run every 10 ms had to wait for it."""
    seen, over = Pauses(), Event()

    def look() -> None:
        last_s = monotonic()
        while not over.wait(0.01):
            last_s, before_s = monotonic(), last_s
            seen.longest_s = max(seen.longest_s, last_s - before_s)

    watcher = Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def until_stored(host: Host, engine: Engine) -> int:
    """Until a store comes through: then both workers are attached. How many chunks there are."""

    def stored() -> int:
        engine.generate([tokens(CHUNK_TOKENS + 1, seed=next(SEEDS))], 2)
        return host.chunks()

    until(stored, "the workers store", 60.0, between=lambda: host.settle(engine))
    host.settle(engine)
    return host.chunks()


def test_two_workers_store_and_reload(host, start, dense, references, two_workers):
    prompt = tokens(PROMPT_TOKENS, seed=1)
    expected = references.tokens(dense, [prompt])
    first = start(dense, **two_workers)
    first.warm_up()
    assert first.generate([prompt]) == expected
    host.settle(first)
    first.close()

    second = start(dense, **two_workers)
    second.warm_up()
    assert second.generate([prompt]) == expected
    assert second.external_hits() == 1280
    assert second.loaded_bytes() >= WHOLE_CHUNKS_BYTES
    host.settle(second)


def test_what_one_or_both_workers_lose_both_compute(start, dense, references, two_workers, tmp_path):
    prompt = tokens(PROMPT_TOKENS, seed=2)
    expected = references.tokens(dense, [prompt])
    root = tmp_path / "root"
    root.mkdir()
    with storing_host(root) as host:
        engine = start(dense, address=host.address, **two_workers)
        try:
            others = until_stored(host, engine)
            assert engine.generate([prompt]) == expected
            host.settle(engine)
            on_storage(host)

            # Both: one chunk in the middle does not verify.
            assert host.stop() == 0
            assert spoil_segments(root, first=others + 2, last=others + 3) == 1
            restart_empty(host, others + WHOLE_CHUNKS, engine, workers=2)
            others = until_stored(host, engine)
            loaded = engine.loaded_bytes()
            with pauses() as paused:
                assert engine.generate([prompt]) == expected
            if paused.longest_s > STARVED_S:  # right tokens, but not by the way this is about
                pytest.skip(f"no core for anybody for {paused.longest_s:.1f} s: two bound workers spin")
            assert engine.call("metrics")["kvtier_failed_loads"] == 1
            assert 0 < engine.loaded_bytes() - loaded < WHOLE_CHUNKS_BYTES
            assert host.counters()["storage_failed_corrupt"] == 1
            whole = others + WHOLE_CHUNKS
            host.wait_for(lambda: host.chunks() == whole, "the one computed instead is stored", engine)
            host.settle(engine)

            # Each another one: what is good is what lies before both.
            engine.forget()
            engine.call("fail_loads_of_workers", valid_chunks=[3, 1])
            assert engine.generate([prompt]) == expected
            assert engine.call("metrics")["kvtier_failed_loads"] == 2
            host.settle(engine)

            # Both have stored what they computed.
            engine.forget()
            loaded = engine.loaded_bytes()
            assert engine.generate([prompt]) == expected
            assert engine.loaded_bytes() - loaded == WHOLE_CHUNKS_BYTES
            assert engine.call("metrics")["kvtier_failed_loads"] == 2
            host.settle(engine)
        finally:
            engine.close()
