"""Many threads and processes against one daemon, with an oracle of values: whatever is read is right.

A key's chunk has the same bytes whoever writes it, so every byte that is read can be checked.
"""

import random
import threading

import pytest
from harness import Daemon, bytes_of, child, key_of, line_of, load

from kvtier import Client

CHUNK = 16 << 10
PRINT = {"model": "soak"}
KEYS = 600  # of which the arena holds about a third
SECONDS = 8.0


def rummage(client: Client, seed: int, stop: threading.Event, counts: dict[str, int]) -> None:
    """Random runs of keys: look up, read what is there and check it, store the rest."""
    rng = random.Random(seed)
    ns = client.namespace(PRINT, CHUNK)
    while not stop.is_set():
        start = rng.randrange(KEYS)
        keys = [key_of("soak", start + i) for i in range(rng.randrange(1, 40))]
        counts["loaded"] += load(ns, keys)
        with ns.reserve(keys) as write:
            for key, view in zip(write.keys, write.views, strict=True):
                view[:] = bytes_of(key, CHUNK)
            if rng.random() < 0.9:
                assert write.commit()
                counts["stored"] += len(write.keys)
        if rng.random() < 0.02:
            ns.touch(keys)


CHILD = """
import sys, threading
sys.path.insert(0, sys.argv[3])
from test_soak import *
with Client.connect(sys.argv[1], deadline_ms=5000, name="soak") as client:
    stop, counts = threading.Event(), {"loaded": 0, "stored": 0}
    threading.Timer(SECONDS, stop.set).start()
    print("go", flush=True)
    rummage(client, int(sys.argv[2]), stop, counts)
    print(counts["loaded"], counts["stored"], flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lru", "s3fifo"])
def test_threads_and_processes_read_only_what_was_written(start_daemon, policy: str, seed: int) -> None:
    daemon: Daemon = start_daemon("4MiB", "--policy", policy, "--slots-max", "1024")
    errors: list[BaseException] = []
    stop, counts = threading.Event(), {"loaded": 0, "stored": 0}
    here = str(__file__).rpartition("/")[0]

    def guarded(client: Client, number: int) -> None:
        try:
            rummage(client, seed + number, stop, counts)
        except BaseException as error:
            errors.append(error)
            stop.set()

    with (
        daemon.client(name="threads") as client,
        child(CHILD, daemon.address, seed + 100, here) as one,
        child(CHILD, daemon.address, seed + 200, here) as two,
    ):
        for process in (one, two):
            line_of(process, "the soak child")
        threads = [threading.Thread(target=guarded, args=(client, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        stop.wait(SECONDS)
        stop.set()
        for thread in threads:
            thread.join(30)
        assert errors == [], f"seed {seed}"
        for process in (one, two):
            loaded, stored = map(int, line_of(process, f"the soak child, seed {seed}").split())
            assert loaded > 0, seed
            assert stored > 0, seed
        counters = daemon.counters()
        assert counters["evictions"] > 1000
        assert counts["loaded"] > 0
        assert counts["stored"] > 0
