"""Two processes share chunks; little memory makes the daemon evict; every byte is verified."""

import numpy as np
import pytest
from harness import Daemon, bytes_of, child, keys_of, line_of, load, store

from kvtier import Grant

CHUNK = 256 << 10
PRINT = {"model": "shared"}

READER = """
import sys
from harness import *
client = Client.connect(sys.argv[1], deadline_ms=PATIENT_MS, name="reader")
ns = client.namespace({"model": "shared"}, 256 << 10)
print("attached", flush=True)
for line in sys.stdin:
    start, count = map(int, line.split())
    print(load(ns, keys_of("shared", count, start)), flush=True)
"""


def ask(process: object, start: int, count: int) -> int:
    process.stdin.write(f"{start} {count}\n")
    process.stdin.flush()
    return int(line_of(process, "the reader"))


def test_another_process_reads_what_this_one_stored(daemon: Daemon) -> None:
    with daemon.client(name="writer") as client, child(READER, daemon.address) as reader:
        line_of(reader, "attach")
        ns = client.namespace(PRINT, CHUNK)
        assert ask(reader, 0, 20) == 0
        assert store(ns, keys_of("shared", 20)) == 20
        assert ask(reader, 0, 20) == 20
        assert ask(reader, 5, 30) == 15
        assert {item.client for item in daemon.stats().sessions} == {"writer", "reader"}
        ns.clear()
        assert ask(reader, 0, 20) == 0


@pytest.mark.parametrize("policy", ["lru", "s3fifo"])
def test_eviction_under_pressure_never_gives_wrong_bytes(start_daemon, policy: str) -> None:
    """Ten times more chunks than fit; what is still there is right, and it is about as much as fits."""
    daemon = start_daemon("32MiB", "--policy", policy)
    fit = (32 << 20) // CHUNK
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        for start in range(0, 10 * fit, 16):
            assert store(ns, keys_of("pressure", 16, start)) == 16
        there = sum(load(ns, [key]) for key in keys_of("pressure", 10 * fit))
        counters = daemon.counters()
        assert counters["evictions"] >= 9 * fit - 16
        assert 0.8 * fit <= there <= fit
        assert counters["committed_slots"] == there


def test_of_one_prefix_the_tail_goes_first(start_daemon) -> None:
    daemon = start_daemon("32MiB")
    fit = (32 << 20) // CHUNK
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        prefix = keys_of("prefix", fit // 2)
        store(ns, prefix)
        for start in range(0, 3 * fit // 4, 8):
            store(ns, keys_of("filler", 8, start))
        left = ns.lookup(prefix).chunks
        assert 0 < left < len(prefix)
        assert load(ns, prefix) == left
        assert sum(ns.lookup([key]).chunks for key in prefix) == left  # no island behind the gap


def test_pinned_chunks_survive_pressure_and_no_space_is_an_answer(start_daemon) -> None:
    daemon = start_daemon("16MiB")
    fit = (16 << 20) // CHUNK
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        pinned = keys_of("pinned", fit // 2)
        store(ns, pinned)
        with ns.lease(pinned) as read:
            for start in range(0, 4 * fit, 8):
                store(ns, keys_of("flood", 8, start))
            assert [
                view == bytes_of(key, CHUNK) for key, view in zip(read.keys, read.views, strict=True)
            ] == [True] * len(pinned)
            assert read.valid()
            with ns.reserve(keys_of("too much", fit)) as write:
                assert Grant.NO_SPACE in write.grants
                assert write.grants.count(Grant.GRANTED) == len(write.keys) <= fit - len(pinned)
        assert daemon.counters()["refusals"] > 0


def test_chunk_sizes_trade_slabs(start_daemon) -> None:
    """The arena fills with one size, then with another: slabs move, and nothing is served wrong."""
    daemon = start_daemon("32MiB", "--slab", "2MiB")
    with daemon.client() as client:
        small = client.namespace({"size": "small"}, 64 << 10)
        large = client.namespace({"size": "large"}, 1 << 20)
        store(small, keys_of("small", 512))
        assert daemon.counters()["free_slabs"] == 0
        for start in range(0, 24, 4):
            assert store(large, keys_of("large", 4, start)) == 4
        assert daemon.counters()["rebalances"] > 0
        assert load(large, keys_of("large", 24)[-4:]) == 4
        for key in keys_of("small", 512):
            load(small, [key])


def test_a_lease_makes_room_only_from_unpinned_chunks_of_others(start_daemon) -> None:
    daemon = start_daemon("16MiB")
    with daemon.client() as one, daemon.client() as two:
        mine, theirs = one.namespace({"of": "one"}, CHUNK), two.namespace({"of": "two"}, CHUNK)
        store(mine, keys_of("mine", 8))
        with mine.lease(keys_of("mine", 8)) as read:
            for start in range(0, 256, 8):
                store(theirs, keys_of("theirs", 8, start))
            assert read.valid()
            assert np.frombuffer(read.views[7], np.uint8).tobytes() == bytes_of(read.keys[7], CHUNK)
