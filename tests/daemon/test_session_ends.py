"""What comes back, and when, after an engine's process goes away in each possible manner."""

import os
import signal
import socket

import pytest
from harness import child, keys_of, line_of, store, until

from kvtier.io import fdpass
from kvtier.io.pidfd import has_ended, peer_pidfd

HOLD = """
import os, sys
from kvtier import Client
from harness import keys_of
client = Client.connect(sys.argv[1], deadline_ms=5000, group=sys.argv[2])
ns = client.namespace({"model": "m"}, chunk_bytes=65536)
read = ns.lease(keys_of("present", 3)).__enter__()
write = ns.reserve(keys_of(sys.argv[3], 2)).__enter__()
print("held", len(read.keys), len(write.keys), flush=True)
"""
WAIT = HOLD + "sys.stdin.read()\n"
FORK = HOLD + "if os.fork() == 0:\n    sys.stdin.read()\n    os._exit(0)\nsys.stdin.read()\n"


@pytest.fixture
def present(daemon):
    """Three chunks that every child leases."""
    with daemon.client() as client:
        store(client.namespace({"model": "m"}, chunk_bytes=65536), keys_of("present", 3))
    until(lambda: not daemon.stats().sessions, "the storing session ended")


def start(daemon, code=WAIT, group="engine", name="new"):
    return child(code, daemon.address, group, name)


def counts(daemon):
    counters = daemon.counters()
    names = ("read_leases", "write_leases", "pinned_slots", "reserved_slots", "quarantined_slots")
    return tuple(counters[name] for name in names)


@pytest.mark.usefixtures("present")
def test_killed(daemon):
    with start(daemon) as engine:
        assert line_of(engine, "leases") == "held 3 2"
        assert counts(daemon) == (1, 1, 3, 2, 0)
        engine.kill()
        until(lambda: counts(daemon) == (0, 0, 0, 0, 0), "everything is back")
    assert daemon.stats().sessions == ()
    assert daemon.counters()["committed_slots"] == 3


@pytest.mark.usefixtures("present")
def test_exited_without_a_word(daemon):
    with start(daemon, HOLD + "os._exit(0)\n") as engine:
        assert line_of(engine, "leases") == "held 3 2"
        until(lambda: counts(daemon) == (0, 0, 0, 0, 0), "everything is back")


@pytest.mark.usefixtures("present")
def test_killed_while_a_forked_child_keeps_the_connection_open(daemon):
    with start(daemon, FORK) as engine:
        assert line_of(engine, "leases") == "held 3 2"
        engine.kill()
        until(lambda: counts(daemon) == (0, 0, 0, 0, 0), "the child's copy of the socket does not matter")


@pytest.mark.usefixtures("present")
def test_stopped_is_not_dead(daemon):
    with start(daemon) as engine:
        assert line_of(engine, "leases") == "held 3 2"
        engine.send_signal(signal.SIGSTOP)
        with daemon.client() as client:  # the daemon has looked at its sockets since
            client.stats()
        assert counts(daemon) == (1, 1, 3, 2, 0)
        engine.send_signal(signal.SIGCONT)


@pytest.mark.usefixtures("present")
def test_another_process_of_the_engine_keeps_the_slots_in_quarantine(daemon):
    with start(daemon) as scheduler, start(daemon, name="other") as worker:
        assert [line_of(process, "leases") for process in (scheduler, worker)] == ["held 3 2", "held 3 2"]
        scheduler.kill()
        # The worker may still be writing what the scheduler reserved.
        until(lambda: counts(daemon) == (1, 1, 3, 2, 2), "quarantined")
        worker.kill()
        until(lambda: counts(daemon) == (0, 0, 0, 0, 0), "everything is back")


@pytest.mark.usefixtures("present")
def test_the_connection_alone_ends(daemon):
    """The process lives and may still be writing: its reserved slots wait for its end."""
    hold = """
import sys
from kvtier.client.channel import ControlChannel
from kvtier.client.attach import attach
from harness import keys_of
with ControlChannel(sys.argv[1]) as control:
    one = attach(control, number=1, name="raw", group="g", deadline_ms=5000, timeout_s=10)
    index = control.open_namespace('{"model":"m"}', 65536).index
one.session.lease(index, keys_of("present", 3))
one.session.reserve(index, keys_of("new", 2))
print("held", flush=True)
sys.stdin.readline()
one.connection.close()
print("closed", flush=True)
sys.stdin.read()
"""
    with child(hold, daemon.address) as engine:
        assert line_of(engine, "leases") == "held"
        assert counts(daemon) == (1, 1, 3, 2, 0)
        engine.stdin.write("\n")
        engine.stdin.flush()
        assert line_of(engine, "close") == "closed"
        until(lambda: counts(daemon) == (0, 0, 0, 0, 2), "reads are back, writes are quarantined")
        engine.kill()
        until(lambda: counts(daemon) == (0, 0, 0, 0, 0), "the end was proven")


@pytest.mark.usefixtures("present")
def test_closed_in_order_after_it_said_drained(daemon):
    grant_and_close = """
import sys
from kvtier import Client
from harness import keys_of
client = Client.connect(sys.argv[1], deadline_ms=5000)
ns = client.namespace({"model": "m"}, chunk_bytes=65536)
ns.lease(keys_of("present", 3)).__enter__()
write = ns.reserve(keys_of("new", 2)).__enter__()
client.close()
print("closed", flush=True)
sys.stdin.read()
"""
    with child(grant_and_close, daemon.address) as engine:
        assert line_of(engine, "close") == "closed"
        until(lambda: counts(daemon) == (0, 0, 0, 0, 0), "everything is back while the process lives")
        assert engine.poll() is None


def test_a_hundred_kills_leave_nothing(daemon):
    fds = f"/proc/{daemon.process.pid}/fd"
    with daemon.client() as client:
        store(client.namespace({"model": "m"}, chunk_bytes=65536), keys_of("present", 3))
    until(lambda: not daemon.stats().sessions, "the storing session ended")
    before = len(os.listdir(fds))
    code = """
import os, sys
from kvtier import Client
from harness import keys_of
for i in range(20):
    if os.fork() == 0:
        client = Client.connect(sys.argv[1], deadline_ms=5000)
        ns = client.namespace({"model": "m"}, chunk_bytes=65536)
        ns.lease(keys_of("present", 3)).__enter__()
        ns.reserve(keys_of(i, 2)).__enter__()
        os.kill(os.getpid(), 9)
    os.wait()
print("done", flush=True)
"""
    for _ in range(5):
        with child(code, daemon.address, GRPC_ENABLE_FORK_SUPPORT="0") as engines:
            assert line_of(engines, "twenty kills", 60) == "done"
    until(lambda: counts(daemon) == (0, 0, 0, 0, 0), "everything is back")
    until(lambda: len(os.listdir(fds)) <= before + 2, "descriptors are back")


def test_a_pidfd_of_the_peer_tells_its_end():
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        theirs.close()
        ours.recv(1)
        os._exit(0)
    with ours, theirs:
        pidfd = os.pidfd_open(pid)
        assert not has_ended(pidfd)
        theirs.send(b"x")
        until(lambda: has_ended(pidfd), "the child ended")
        os.waitpid(pid, 0)
        os.close(pidfd)
        own = peer_pidfd(theirs, fdpass.peer_of(theirs).pid)
        assert own is not None
        assert not has_ended(own)
        os.close(own)
