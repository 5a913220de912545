"""Sockets are removed under a serving daemon: who is attached does not notice, and others find it again."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

from harness import Daemon, keys_of, load, running_daemon, store, until

from kvtier import Client, DaemonUnavailable

CHUNK = 16 << 10
PRINT = {"model": "sockets"}


def attaches(daemon: Daemon) -> bool:
    try:
        with daemon.client() as client:
            return load(client.namespace(PRINT, CHUNK), keys_of("a", 3)) == 3
    except DaemonUnavailable:
        return False


def test_removed_sockets_come_back_and_nobody_who_is_attached_notices(daemon: Daemon) -> None:
    with daemon.client(name="stays") as client, closing(daemon.control()) as control:
        ns = client.namespace(PRINT, CHUNK)
        tool = control.open_session("tool")  # a stream that came in by the socket that goes
        assert store(ns, keys_of("a", 3)) == 3
        for _ in range(3):
            daemon.signal(signal.SIGSTOP)  # it must not listen anew before that was seen
            for path in daemon.directory.glob("kvtier.sock*"):
                path.unlink()
            assert not attaches(daemon)
            daemon.signal(signal.SIGCONT)
            until(lambda: attaches(daemon), "the daemon listens anew")
            assert load(ns, keys_of("a", 3)) == 3
        for path in daemon.directory.glob("kvtier.sock*"):
            assert path.stat().st_mode & 0o077 == 0, path
        assert [info.client for info in daemon.stats().sessions] == ["stays", "tool"]
        tool.close()
        assert client.attachment == 1
    assert daemon.log().count("the sockets had been removed: listening anew") == 3


def test_the_whole_directory_is_made_anew(daemon: Daemon) -> None:
    with daemon.client() as client:
        store(client.namespace(PRINT, CHUNK), keys_of("a", 3))
    shutil.rmtree(daemon.directory)
    until(lambda: attaches(daemon), "the daemon listens anew")
    assert daemon.directory.stat().st_mode & 0o077 == 0
    assert daemon.stop() == 0
    assert list(daemon.directory.iterdir()) == []


def test_one_name_alone(daemon: Daemon) -> None:
    with daemon.client() as client:
        store(client.namespace(PRINT, CHUNK), keys_of("a", 3))
    for name in ("kvtier.sock", "kvtier.sock.session"):
        (daemon.directory / name).unlink()
        until(lambda: attaches(daemon), f"{name} is there again")
    (daemon.directory / "kvtier.sock.lock").unlink()
    until(lambda: (daemon.directory / "kvtier.sock.lock").exists(), "the lock is there again")
    again = Daemon(daemon.directory, dram="4MiB", shm_dir=daemon.shm_dir.with_name("other"))
    refused = subprocess.run(again.command, capture_output=True, text=True, timeout=30)
    assert refused.returncode != 0
    assert "is served by another kvtier daemon" in refused.stderr


def test_a_file_in_a_sockets_place_stays_what_it_is(daemon: Daemon) -> None:
    with daemon.client() as client:
        store(client.namespace(PRINT, CHUNK), keys_of("a", 3))
    for name in ("kvtier.sock", "kvtier.sock.session"):
        path = daemon.directory / name
        daemon.signal(signal.SIGSTOP)  # it must not listen anew before the file is there
        path.unlink()
        path.write_text("somebody's")
        daemon.signal(signal.SIGCONT)
        until(lambda path=path: f"{path} exists and is not a socket" in daemon.log(), "the refusal")
        assert path.read_text() == "somebody's"
        path.unlink()
        until(lambda: attaches(daemon), "the daemon listens anew")
    daemon.signal(signal.SIGSTOP)
    path.unlink()
    path.write_text("somebody's")
    assert daemon.process.poll() is None
    daemon.signal(signal.SIGCONT)
    assert daemon.stop() == 0
    assert path.read_text() == "somebody's"
    path.unlink()


def test_a_directory_that_others_share(daemon: Daemon) -> None:
    daemon.directory.chmod(0o1777)
    with daemon.client() as client:
        store(client.namespace(PRINT, CHUNK), keys_of("a", 3))
    for path in daemon.directory.glob("kvtier.sock*"):
        path.unlink()
    until(lambda: attaches(daemon), "the daemon listens anew")
    assert "cannot be made anew" not in daemon.log()


@contextmanager
def another_at_its_address(daemon: Daemon) -> Iterator[Daemon]:
    """Another daemon that has taken the address while this one stood still; it stands still yet."""
    with running_daemon("4MiB") as other:
        other.command = [daemon.address if part == other.address else part for part in other.command]
        assert other.stop() == 0
        daemon.signal(signal.SIGSTOP)  # it must not see the names go before the other one has them
        for path in daemon.directory.glob("kvtier.sock*"):
            path.unlink()
        other.address = daemon.address
        other.start()
        yield other


def test_an_address_that_another_daemon_has_taken_stays_with_it_when_this_one_ends(daemon: Daemon) -> None:
    with another_at_its_address(daemon) as other:
        names = {path.name: path.stat().st_ino for path in daemon.directory.glob("kvtier.sock*")}
        daemon.signal(signal.SIGCONT)
        assert daemon.stop() == 0
        assert {path.name: path.stat().st_ino for path in daemon.directory.glob("kvtier.sock*")} == names
        assert len(names) == 3
        assert "the sockets had been removed" not in other.log()
        assert other.stop() == 0


def test_an_address_that_another_daemon_has_taken_is_left_to_it(daemon: Daemon) -> None:
    with daemon.client() as client:
        store(client.namespace(PRINT, CHUNK), keys_of("a", 3))
        with another_at_its_address(daemon) as other:
            boot = other.stats().boot_id
            daemon.signal(signal.SIGCONT)
            until(lambda: "the sockets are gone, and cannot be made anew" in daemon.log(), "the refusal")
            with Client.connect(daemon.address, timeout_s=10.0) as newcomer:
                assert newcomer.boot_id == boot
            assert load(client.namespace(PRINT, CHUNK), keys_of("a", 3)) == 3
            assert other.stop() == 0
        until(lambda: attaches(daemon), "the address is free again, and the daemon has it back")
