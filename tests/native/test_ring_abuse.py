"""A client that writes what it likes into its ring and the doorbell hurts nobody but itself."""

import mmap
import os
import random
import signal
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_host import PAGE, Host, keys, stored

import tpu_sync_native as native

pytestmark = pytest.mark.timeout(120)

REQUEST_TAIL = 64  # offset of the client's counter in the ring's header
REQUESTS = 4096  # offset of the request area


def scribble(host: Host, tail: int, record: bytes) -> None:
    """Attach, write one record and a tail, ring the doorbell by an honest call of another session, detach."""
    ring_fd = host.files.ring()
    host.sessions += 1
    number = host.sessions
    host.store.open_session(number, number, os.getpid(), ring_fd)
    with mmap.mmap(ring_fd, native.ring_bytes()) as ring:
        ring[REQUESTS : REQUESTS + len(record)] = record
        ring[REQUEST_TAIL : REQUEST_TAIL + 8] = struct.pack("<Q", tail)
        _, honest = host.attach()
        honest.ping()
    host.store.close_session(number, False)
    host.store.close_session(number, True)
    host.store.close_session(host.sessions, True)
    for fd in host.files.ring_fds:
        os.close(fd)
    host.files.ring_fds.clear()


def test_tail_is_where_this_test_thinks(host: Host) -> None:
    ring_fd = host.files.ring()
    host.store.open_session(900, 900, os.getpid(), ring_fd)
    session = host.files.session(ring_fd)
    session.ping()
    with mmap.mmap(ring_fd, native.ring_bytes(), access=mmap.ACCESS_READ) as ring:
        assert struct.unpack("<Q", ring[REQUEST_TAIL : REQUEST_TAIL + 8]) == (64,)
        assert ring[REQUESTS : REQUESTS + 5] == struct.pack("<IB", 64, 1)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    tail=st.one_of(st.integers(0, 40).map(lambda n: n * 64), st.integers(0, 2**64 - 1)),
    op=st.integers(0, 255),
    record_bytes=st.one_of(st.integers(0, 40).map(lambda n: n * 64), st.integers(0, 2**32 - 1)),
    counts=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
    | st.tuples(*2 * [st.integers(0, 64)]),
    body=st.binary(max_size=2048),
)
def test_any_record(
    host: Host, tail: int, op: int, record_bytes: int, counts: tuple[int, int], body: bytes
) -> None:
    header = struct.pack("<IBBHQQIII", record_bytes, op, 1, 0, 1, 1, 0, *counts).ljust(64, b"\0")
    scribble(host, tail, header + body)
    assert host.store.audit() == []


def test_a_lie_closes_the_ring_at_once(host: Host) -> None:
    ring_fd = host.files.ring()
    host.store.open_session(900, 900, os.getpid(), ring_fd)
    session = host.files.session(ring_fd)
    with mmap.mmap(ring_fd, native.ring_bytes()) as ring:
        ring[REQUEST_TAIL : REQUEST_TAIL + 8] = struct.pack("<Q", 2**63)
        _, honest = host.attach()
        honest.ping()
    with pytest.raises(native.DaemonLost, match="closed the ring"):
        session.ping()
    assert host.store.stats()["ring_closed_for_lies"] == 1


def test_a_process_scribbles_over_everything_it_has(host: Host) -> None:
    """Ring and doorbell overwritten at random, again and again, while another session works."""
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, honest = host.attach()
    stored(honest, ns, keys(0, 8))
    ring_fd = host.files.ring()
    host.store.open_session(900, 900, os.getpid(), ring_fd)
    child = os.fork()
    if child == 0:
        source = random.Random(7)
        with (
            mmap.mmap(ring_fd, native.ring_bytes()) as ring,
            mmap.mmap(host.files.doorbell_fd, PAGE) as doorbell,
        ):
            while True:
                at = source.randrange(8192)
                ring[at : at + 8] = source.randbytes(8)
                doorbell[0:4] = source.randbytes(4)
    try:
        for round_ in range(300):
            read = honest.lease(ns, keys(0, 8))
            assert read.count == 8
            honest.release(read.lease)
            stored(honest, ns, keys(100 + round_, 1))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
