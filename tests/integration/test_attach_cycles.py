"""Thousands of engines come and go, in every way: memory, descriptors, threads and files stay put."""

import os
import secrets
import socket
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest
from harness import PATIENT_MS, SHM, Daemon, key_of, keys_of, load, store, until

from kvtier.client.attach import Attachment, attach
from kvtier.client.channel import ControlChannel
from kvtier.client.namespace import Namespace
from kvtier.io import fdpass

CHUNK = 16 << 10
PRINT = {"model": "cycles"}
WARM_UP, CYCLES = 200, 2000
GROWTH_MAX = 1 << 20  # 512 bytes a cycle would show; the allocator's pools may grow a little


def descriptors(pid: int | str) -> Counter[str]:
    """By what they are, numbers left out."""
    found: Counter[str] = Counter()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # the one that lists
            found[os.readlink(f"/proc/{pid}/fd/{name}").partition(":[")[0]] += 1
    return found


def threads(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def mapped(pid: int | str) -> int:
    """Mappings of kvtier's shared memory."""
    return Path(f"/proc/{pid}/maps").read_text().count("kvtier-ring")


def open_session(control: ControlChannel, ns: Namespace, number: int) -> Attachment:
    """An attach as a client does it."""
    return attach(
        control,
        number=number,
        name="cycle",
        group=f"group {number}",
        deadline_ms=PATIENT_MS,
        timeout_s=10.0,
        namespaces=[ns],
    )


def in_order(control: ControlChannel, ns: Namespace, number: int) -> None:
    open_session(control, ns, number).close()


def holding_leases(control: ControlChannel, ns: Namespace, number: int) -> None:
    """It goes with what it has leased, and says so."""
    attachment = open_session(control, ns, number)
    index = attachment.indexes[ns.id]
    attachment.session.lease(index, keys_of("known", 2))
    attachment.session.reserve(index, [key_of("reserved", number)])
    attachment.close()


def without_a_word(control: ControlChannel, ns: Namespace, number: int) -> None:
    """The connection ends, nothing was said. It reserved nothing, so nothing waits for this process's end."""
    attachment = open_session(control, ns, number)
    attachment.session.lease(attachment.indexes[ns.id], keys_of("known", 2))
    attachment.session.mark_lost()
    attachment.connection.close()


def half_way(control: ControlChannel, ns: Namespace, number: int) -> None:
    """It connects, and goes before it has shown a token."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(session_socket(control))


def session_socket(control: ControlChannel) -> str:
    return control.address.removeprefix("unix:") + ".session"


def with_a_wrong_token(control: ControlChannel, ns: Namespace, number: int) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10.0)
        connection.connect(session_socket(control))
        with pytest.raises((fdpass.Refused, ConnectionError)):
            fdpass.receive_descriptors(connection, secrets.token_bytes(32))


WAYS = (in_order, holding_leases, without_a_word, half_way, with_a_wrong_token)


@pytest.mark.slow
def test_thousands_of_attaches_leak_nothing(daemon: Daemon) -> None:
    pid = daemon.process.pid
    with daemon.client(name="stays") as client, closing(daemon.control()) as control:
        ns = client.namespace(PRINT, CHUNK)
        assert store(ns, keys_of("known", 2)) == 2

        for _ in range(20):
            control.attach("never comes for it", "group")

        def settle() -> None:
            until(lambda: daemon.counters()["sessions"] == 1, "only one session is left", 30.0)
            until(lambda: daemon.counters()["ring_sessions"] == 1, "and one ring", 30.0)

        for number in range(WARM_UP):
            WAYS[number % len(WAYS)](control, ns, number)
        settle()
        until(lambda: daemon.counters()["reserved_slots"] == 0, "slots given back")
        before = descriptors(pid), threads(pid), mapped(pid), set(os.listdir(SHM))
        own = descriptors("self"), threading.active_count(), mapped("self")
        memory = daemon.memory_bytes()
        began_s = time.monotonic()
        for number in range(WARM_UP, WARM_UP + CYCLES):
            WAYS[number % len(WAYS)](control, ns, number)
        print(f"{CYCLES} cycles in {time.monotonic() - began_s:.1f} s")
        settle()

        until(lambda: descriptors(pid) <= before[0], f"descriptors are closed; before {before[0]}")
        assert threads(pid) <= before[1]
        assert mapped(pid) == before[2]
        grown = daemon.memory_bytes()["anon"] - memory["anon"]
        print(f"the daemon's own memory has grown by {grown >> 10} KiB")
        assert grown <= GROWTH_MAX
        assert daemon.memory_bytes()["shmem"] <= memory["shmem"] + (1 << 20)
        mine = f"kvt-{daemon.shm_dir.parent.name}"
        assert {name for name in os.listdir(SHM) if mine in name} <= before[3]
        assert descriptors("self") <= own[0]
        assert threading.active_count() <= own[1]
        assert mapped("self") == own[2]
        counters = daemon.counters()
        for name in ("write_leases", "reserved_slots", "quarantined_slots", "read_leases", "pinned_slots"):
            assert counters.get(name, 0) == 0, name
        assert load(ns, keys_of("known", 2)) == 2  # whoever stayed has noticed nothing
        assert client.attachment == 1


def test_a_client_that_loses_its_session_often_is_watched_once(daemon: Daemon) -> None:
    """It may write for others of its engine: one proof of its end is waited for, not one a loss."""
    pid = daemon.process.pid
    with (
        daemon.client(managed=True, group="engine", name="worker") as worker,
        daemon.client(group="engine", name="scheduler"),
    ):
        ns = worker.namespace(PRINT, CHUNK)
        worker.copy_engine(threads=1).close()
        before = descriptors(pid)
        for life in range(2, 30):
            worker._keeper.report_lost(worker._keeper.attachment, "planted")
            until(lambda: worker.attachment == life and ns.attached, "attached anew")  # noqa: B023
        until(lambda: daemon.counters()["sessions"] == 2, "two sessions are open")
        until(lambda: descriptors(pid)["anon_inode"] <= before["anon_inode"], "none is watched beside them")
        assert store(ns, keys_of("known", 2)) == load(ns, keys_of("known", 2)) == 2
