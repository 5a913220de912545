"""A process whose device hangs: it ends all the same, and nobody gets a slot that it may still write into."""

import os
import signal

import pytest
from harness import SETTLE_S, Daemon, child, keys_of, line_of, load, store, until

CHUNK = 64 << 10
PRINT = {"model": "hung"}

HUNG = """
import sys
import numpy as np
from harness import *
from tpu_sync_native import CopyEngine, FakeDevice, unlanded_stores
client = Client.connect(sys.argv[1], deadline_ms=PATIENT_MS, name="hung")
ns = client.namespace({"model": "hung"}, 64 << 10)
grants = ns.reserve_slots(keys_of("late", 1))
device = FakeDevice()
buffer = device.make_buffer(64 << 10)
session = client._keeper.attachment.session
engine = CopyEngine(session, threads=1, backend=device.backend())
layout = engine.add_layout([(0, 64 << 10, 64 << 10)], 1, 1)
device.pause("copies")
zero = np.zeros(1, np.int64)
refs = (grants.slots, grants.generations, grants.offsets)
engine.submit(1, "store", [layout], [1], zero, zero, refs, [buffer])
assert device.await_queued("copies", 1)
assert not engine.close(0.05)
assert [(job, ok) for job, ok, *_ in engine.poll()] == [(1, False)]
assert engine.unlanded() == [1] and unlanded_stores() == 1
del engine
client.close()
del client, session, ns
print("closed", grants.slots[0], flush=True)
if sys.stdin.readline().strip() == "answer":
    device.resume("copies")  # the mapping is there still
    until(lambda: unlanded_stores() == 0, "the late write")
    print("landed", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("answers", [False, True])
def test_the_slots_of_a_hung_store_wait_for_the_end_of_its_process(daemon: Daemon, answers: bool) -> None:
    with child(HUNG, daemon.address) as hung, daemon.client() as client:
        slot = int(line_of(hung, "the engine").split()[1])
        until(lambda: daemon.counters()["quarantined_slots"] == 1, "the quarantine")
        ns = client.namespace(PRINT, CHUNK)
        assert ns.lookup(keys_of("late", 1)).chunks == 0
        grants = ns.reserve_slots(keys_of("late", 1))  # the key is free, the slot is not
        assert grants.slots.tolist() != [slot]
        ns.abort_slots(grants)
        assert store(ns, keys_of("others", 4)) == 4
        assert hung.stdin is not None
        if answers:
            print("answer", file=hung.stdin, flush=True)
            assert line_of(hung, "the late write") == "landed"
            assert daemon.counters()["quarantined_slots"] == 1  # who has closed its session can say no more
        assert load(ns, keys_of("others", 4)) == 4
        print("end", file=hung.stdin, flush=True)
        assert hung.wait(SETTLE_S) == 0  # with a thread that never ends
        until(lambda: daemon.counters()["quarantined_slots"] == 0, "the end of the quarantine")


def test_a_hung_engine_that_is_killed_leaves_nothing(daemon: Daemon) -> None:
    with child(HUNG, daemon.address) as hung:
        line_of(hung, "the engine")
        os.kill(hung.pid, signal.SIGKILL)
        hung.wait(SETTLE_S)
        daemon.assert_nothing_held()
