"""How sessions end: silence, death, fork, exit; and what threads may do meanwhile."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from native_host import PAGE, Files, Host, child_serving, keys, memfd, stored

import tpu_sync_native as native

pytestmark = pytest.mark.timeout(60)


def test_silence_is_bounded_and_paid_once() -> None:
    host = Host(start=False)
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach(deadline_ms=50)
    started_s = time.monotonic()
    with pytest.raises(native.DaemonLost, match="did not answer in time"):
        session.reserve(ns, keys(0, 4))
    assert 0.05 <= time.monotonic() - started_s < 1
    assert session.lost
    started_s = time.monotonic()
    for _ in range(1000):
        with pytest.raises(native.DaemonLost):
            session.ping()
        with pytest.raises(native.DaemonLost):
            session.release(1)
        assert session.lookup(ns, keys(0, 4)) == 0
    assert time.monotonic() - started_s < 1
    assert session.counters()["timeouts"] == 1
    host.start()  # the late answer changes nothing
    with pytest.raises(native.DaemonLost):
        session.ping()
    host.close()


def test_mark_lost_and_close(host: Host) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    refs = stored(session, ns, keys(0, 1))
    view = session.view(int(refs.offsets[0]), PAGE, True)
    view[:3] = b"abc"
    session.mark_lost()
    session.close()
    with pytest.raises(native.DaemonLost, match="has ended"):
        session.ping()
    assert session.lookup(ns, keys(0, 1)) == 0
    assert bytes(view[:3]) == b"abc"


def test_a_view_outlives_session_and_store() -> None:
    host = Host()
    _, session = host.attach()
    view = session.view(0, PAGE, True)
    view[:4] = b"life"
    host.close()
    del session
    host.store = None  # type: ignore[assignment]
    gc.collect()
    assert bytes(view[:4]) == b"life"


def test_stop_is_seen_at_once() -> None:
    host = Host()
    _, session = host.attach()
    session.ping()
    host.store.stop()
    host.store.stop()
    started_s = time.monotonic()
    with pytest.raises(native.DaemonLost, match="closed"):
        session.ping()
    assert time.monotonic() - started_s < 5
    host.close()


def test_killed_in_the_middle_of_a_call() -> None:
    """SIGKILL of the serving process: the call under way ends within its deadline, the next ones at once."""
    files = Files()
    ring_fd = files.ring()
    with child_serving(files, ring_fd) as child:
        session = files.session(ring_fd, deadline_ms=50)
        names = keys(0, 256)
        session.lease(0, names)
        longest_s = 0.0
        killer = threading.Timer(0.2, child.kill)
        killer.start()
        until_s = time.monotonic() + 10
        lost = False
        while not lost and time.monotonic() < until_s:
            started_s = time.monotonic()
            try:
                session.lease(0, names)
            except native.DaemonLost:
                lost = True
            longest_s = max(longest_s, time.monotonic() - started_s)
        assert lost
        killer.join()
        assert longest_s < 0.5, "one deadline of 50 ms, and the machine's scheduling"
        started_s = time.monotonic()
        for _ in range(100):
            with pytest.raises(native.DaemonLost):
                session.lease(0, names)
            assert session.lookup(0, names) == 0
        assert time.monotonic() - started_s < 0.1
    files.close()


def test_a_stopped_daemon_is_as_good_as_dead() -> None:
    files = Files()
    ring_fd = files.ring()
    with child_serving(files, ring_fd) as child:
        session = files.session(ring_fd, deadline_ms=50)
        session.ping()
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)  # it has stopped, all threads
        started_s = time.monotonic()
        with pytest.raises(native.DaemonLost):
            session.ping()
        assert time.monotonic() - started_s < 0.5
        os.kill(child.pid, signal.SIGCONT)
        with pytest.raises(native.DaemonLost):
            session.ping()
    files.close()


def test_fork(host: Host) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    stored(session, ns, keys(0, 2))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            session.ping()
        except native.DaemonLost as error:
            code = 0 if "forked" in str(error) and session.lost and session.lookup(ns, keys(0, 2)) == 0 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    session.ping()
    assert session.lookup(ns, keys(0, 2)) == 2


def test_waiting_releases_the_gil() -> None:
    """While one thread waits for an answer, another one runs."""
    host = Host(start=False)
    _, session = host.attach(deadline_ms=500)
    steps = 0
    done = threading.Event()

    def count() -> None:
        nonlocal steps
        while not done.is_set():
            steps += 1
            time.sleep(0)

    counter = threading.Thread(target=count)
    counter.start()
    before = steps
    with pytest.raises(native.DaemonLost):
        session.ping()
    assert steps - before > 100
    done.set()
    counter.join()
    host.close()


def test_threads_share_a_session(host: Host) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    wrong: list[str] = []

    def work(base: int) -> None:
        for round_ in range(50):
            names = keys(base + round_ * 8, 8)
            write = session.reserve(ns, names)
            session.commit(write.lease, wait=bool(round_ % 2))
            read = session.lease(ns, names)
            if read.lease:
                session.release(read.lease)
            if len(write.grants) != 8 or read.count > 8:
                wrong.append(f"{base}: {list(write.grants)} {read.count}")

    threads = [threading.Thread(target=work, args=(t * 1000,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_exit_without_close() -> None:
    """A process that ends with sessions, views and a running store ends cleanly."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from native_host import Host, PAGE, keys\n"
        "host = Host(); ns = host.store.open_namespace(bytes(16), PAGE)\n"
        "_, session = host.attach(); write = session.reserve(ns, keys(0, 4))\n"
        "view = session.view(0, PAGE, True); print('held', len(write.refs))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "held 4\n"), ended.stderr


def test_memfd_is_what_the_contract_says() -> None:
    ring_fd = memfd("ring")
    host = Host()
    host.store.open_session(1, 1, 0, ring_fd)
    assert os.fstat(ring_fd).st_size == native.ring_bytes()
    with pytest.raises(OSError):
        os.ftruncate(ring_fd, 0)
    os.close(ring_fd)
    host.close()
