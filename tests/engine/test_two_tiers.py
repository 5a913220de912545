"""Prefixes from storage: of another host, after a restart, corrupt, out of reach, and with little room."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engines import BYTES_PER_TOKEN, CHUNK_TOKENS, tokens
from harness import until
from hosts import Host
from storing import on_storage, read_bytes, restart_empty
from storing_hosts import hanging, hanging_host, spoil_segments, storing_host

PROMPT_TOKENS = 4100
WHOLE_CHUNKS = PROMPT_TOKENS // CHUNK_TOKENS
WHOLE_CHUNKS_TOKENS = WHOLE_CHUNKS * CHUNK_TOKENS
WHOLE_CHUNKS_BYTES = WHOLE_CHUNKS_TOKENS * BYTES_PER_TOKEN["dense"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def host(root: Path) -> Iterator[Host]:
    with storing_host(root) as started:
        yield started


@pytest.fixture
def other(root: Path) -> Iterator[Host]:
    """A second host on the same root, with an arena of its own."""
    with storing_host(root) as started:
        yield started


def test_another_hosts_prefixes_and_what_became_of_them(host, other, start, dense, references, root):
    prompt = tokens(PROMPT_TOKENS, seed=1)
    expected = references.tokens(dense, [prompt])
    readers = [start(dense, address=other.address, wait=False) for _ in range(2)]
    writer = start(dense)
    writer.warm_up()
    assert writer.generate([prompt]) == expected
    host.settle(writer)
    on_storage(host)
    writer.close()

    # Two engines ask at once: both are served, and every chunk is read from storage once.
    for reader in readers:
        reader.started().warm_up()
    other.settle(*readers)
    until(lambda: other.counters()["storage_records"] >= WHOLE_CHUNKS, "the other host's records are seen")
    for reader in readers:
        reader.send("generate", prompts=[prompt], max_tokens=16)
    assert [reader.receive()["tokens"] for reader in readers] == [expected, expected]
    assert [reader.external_hits() for reader in readers] == [WHOLE_CHUNKS_TOKENS] * 2
    assert [reader.loaded_bytes() for reader in readers] == [WHOLE_CHUNKS_BYTES] * 2
    assert other.counters()["storage_promoted_chunks"] == WHOLE_CHUNKS
    assert max(read_bytes(reader, "storage") for reader in readers) > 0
    other.settle(*readers)

    # Now they are in this host's DRAM.
    reader = readers[0]
    before = read_bytes(reader, "host")
    reader.forget()
    assert reader.generate([prompt]) == expected
    assert read_bytes(reader, "host") - before == WHOLE_CHUNKS_BYTES
    assert other.counters()["storage_promoted_chunks"] == WHOLE_CHUNKS
    other.settle(reader)
    readers[1].close()

    # Wrong bytes in the segments are misses: what lies before them is loaded, the rest is computed.
    assert host.stop() == 0
    assert spoil_segments(root, first=8) >= WHOLE_CHUNKS - 8
    restart_empty(other, WHOLE_CHUNKS, reader)
    loaded = reader.loaded_bytes()
    assert reader.generate([prompt]) == expected
    assert reader.call("metrics")["kvtier_failed_loads"] == 1
    assert 0 < reader.loaded_bytes() - loaded < WHOLE_CHUNKS_BYTES
    assert other.counters()["storage_failed_corrupt"] > 0
    other.settle(reader)
    # What was computed instead is there for the next request, whole.
    before = read_bytes(reader, "host")
    reader.forget()
    assert reader.generate([prompt]) == expected
    assert read_bytes(reader, "host") - before == WHOLE_CHUNKS_BYTES
    assert reader.call("metrics")["kvtier_failed_loads"] == 1
    other.settle(reader)


def test_groups_and_windows_come_back_after_a_restart(host, start, model_of, references):
    model = model_of("sliding")
    prompt = tokens(2600, seed=4)
    expected = references.tokens(model, [prompt])
    engine = start(model)
    engine.warm_up()
    assert engine.generate([prompt]) == expected
    host.settle(engine)
    chunks = host.chunks()
    assert host.stop() == 0
    restart_empty(host, chunks, engine)
    assert engine.generate([prompt]) == expected
    assert engine.external_hits() == 2600 // CHUNK_TOKENS * CHUNK_TOKENS
    assert read_bytes(engine, "storage") > 0
    host.settle(engine)


def test_storage_that_hangs_costs_a_request_its_deadline(root, start, dense, references, tmp_path):
    prompts = [tokens(PROMPT_TOKENS, seed=2), tokens(900, seed=3)]
    expected = references.tokens(dense, prompts)
    gate = tmp_path / "gate"
    with hanging_host(root, gate) as host:
        engine = start(dense, address=host.address, extra_config={"load_deadline_ms": 1000})
        try:
            engine.warm_up()
            assert engine.generate(prompts[:1]) == expected[:1]
            host.settle(engine)
            assert host.stop() == 0
            with hanging(gate):
                restart_empty(host, WHOLE_CHUNKS, engine)
                # The one waits for storage, the other goes on meanwhile.
                answer = engine.call("generate", prompts=prompts, max_tokens=16)
                assert answer["tokens"] == expected
                assert answer["ttft_s"][1] < answer["ttft_s"][0]
                assert answer["ttft_s"][0] >= 1.0
                assert engine.call("metrics")["kvtier_failed_loads"] == 1
                assert read_bytes(engine, "storage") == 0
                host.wait_for(lambda: not host.leased(), "the lease is back though storage hangs", engine)
            engine.forget()
            assert engine.generate(prompts) == expected
            host.settle(engine)
        finally:
            engine.close()


def test_little_room_in_engine_and_dram(root, start, dense, references):
    """Preemption, stores, loads, evictions, promotes at once. What came of it another engine judges."""
    small = {"num_gpu_blocks_override": 34, "max_num_seqs": 8, "max_model_len": 2048}
    prompts = [tokens(1400, seed=100 + i) for i in range(8)]  # 40 chunks of 1 MiB
    expected = references.tokens(dense, prompts, 80)
    with storing_host(root, "24MiB") as host:
        writer = start(dense, address=host.address, engine=small, wait=False)
        reader = start(dense, address=host.address, wait=False)
        try:
            writer.started().warm_up()
            # What is evicted before its demote is on neither tier; how much that is differs by the round.
            for _ in range(6):
                assert writer.generate(prompts, 80) == expected
                host.settle(writer)
                with closing(host.control()) as control:
                    assert control.flush(20.0)  # written, or dropped
                if host.counters()["storage_promoted_chunks"] > 0:
                    break
            counters = {name: n for name, n in host.counters().items() if n and "storage_" in name}
            assert writer.call("metrics")["num_preemptions"] > 0
            assert host.counters()["storage_promoted_chunks"] > 0, counters
            reader.started().warm_up()
            assert reader.generate(prompts, 80) == expected
            assert read_bytes(reader, "storage") > 0
            host.settle(reader, writer)
        finally:
            for engine in (writer, reader):
                engine.close()
