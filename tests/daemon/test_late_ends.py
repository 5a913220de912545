"""A session is lost in a hang of the daemon while its engine lives on: what it had reserved comes back."""

import signal

import pytest
from harness import keys_of, load, store, until

from kvtier.errors import DaemonUnavailable

PRINT = {"model": "m"}
CHUNK = 65536


@pytest.fixture(params=["engine", ""], ids=["group", "no group"])
def scheduler(daemon, request):
    """A managed client, and, if they have a group, another process's part of the same engine.

    It is patient: only the hang is to lose its session, however busy the machine.
    """
    with daemon.client(managed=True, deadline_ms=500, group=request.param) as client:
        if not request.param:
            yield client
            return
        with daemon.client(group=request.param) as worker:
            worker.namespace(PRINT, CHUNK)
            yield client


def states(daemon):
    counters = daemon.counters()
    return tuple(counters[name] for name in ("reserved_slots", "quarantined_slots", "write_leases"))


def hang(daemon, ns, during=None):
    """The daemon stands still while a reserve waits for it, and for `during`; then both go on."""
    daemon.signal(signal.SIGSTOP)
    try:
        with pytest.raises(DaemonUnavailable):
            ns.reserve_slots(keys_of("asked in the hang", 3))
        if during is not None:
            during()
    finally:
        daemon.signal(signal.SIGCONT)


@pytest.mark.parametrize("end", ["abort_slots", "commit_slots"])
def test_the_holders_late_word_ends_the_quarantine(daemon, scheduler, end):
    ns = scheduler.namespace(PRINT, CHUNK)
    held = ns.reserve_slots(keys_of("held", 2))
    assert len(held) == 2
    hang(daemon, ns)
    until(lambda: ns.attached and scheduler.attachment == 2, "the second attach")
    # Those of the unanswered reserve never reached anybody; the held ones may still be written.
    until(lambda: states(daemon) == (0, 2, 0), "the held slots are quarantined, and only they")
    getattr(ns, end)(held)
    until(lambda: states(daemon) == (0, 0, 0), "the slots are free while both processes live")
    assert ns.lookup_count(keys_of("held", 2)) == 0
    assert store(ns, keys_of("held", 2)) == 2
    assert load(ns, keys_of("held", 2)) == 2


def test_a_word_while_nobody_listens_is_told_at_the_next_attach(daemon, scheduler):
    ns = scheduler.namespace(PRINT, CHUNK)
    held = ns.reserve_slots(keys_of("held", 2))
    kept = ns.reserve_slots(keys_of("kept", 1))

    def during():
        until(lambda: scheduler.counters()["losses"] == 1, "the loss is noticed")
        ns.abort_slots(held)

    hang(daemon, ns, during)
    until(lambda: scheduler.attachment == 2, "the second attach")
    until(lambda: states(daemon) == (0, 1, 0), "only what is still held is quarantined")
    ns.abort_slots(kept)
    until(lambda: states(daemon) == (0, 0, 0), "everything is free")
