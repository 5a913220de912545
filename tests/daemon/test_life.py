"""Start, refusal, stop: what the daemon makes, and what it leaves."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys

import pytest
from harness import Daemon, keys_of, line_of, running_daemon, store, until

from kvtier import Draining
from kvtier.demo.daemon import temporary_paths

SERVE = (sys.executable, "-m", "kvtier.cli.main", "serve")
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture
def paths():
    """A short directory for sockets, and one for an arena."""
    with temporary_paths() as both:
        yield both


def serve(paths, *flags, **variables):
    """Run `kvtier serve` to its end; for starts that must fail."""
    directory, shm_dir = paths
    command = [*SERVE, "--address", f"unix:{directory}/k.sock", "--shm-dir", str(shm_dir), "--dram", "8MiB"]
    return subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=30, env=os.environ | variables
    )


def assert_refused(done, *words, code=2):
    assert done.returncode == code, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("kvtier: "), done.stderr
    assert "Traceback" not in done.stderr
    assert all(word in last for word in words), last


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_ready_line_and_what_lies_on_disk(paths):
    directory, shm_dir = paths
    address = f"unix:{directory}/k.sock"
    command = [*SERVE, "--address", address, "--shm-dir", shm_dir, "--dram", "8MiB", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = line_of(process, "ready")
            assert re.fullmatch(rf"kvtier ready address={address} pid={process.pid} http=127.0.0.1:\d+", line)
            for name in ("k.sock", "k.sock.session"):
                assert stat.S_ISSOCK((directory / name).stat().st_mode)
                assert mode(directory / name) == 0o600
            assert mode(shm_dir) == 0o700
            assert sorted(path.name for path in shm_dir.iterdir()) == [
                "arena.data",
                "arena.lock",
                "arena.meta",
            ]
            assert {mode(path) for path in shm_dir.iterdir()} == {0o600}
            assert (shm_dir / "arena.data").stat().st_size == 8 << 20
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=20)
    assert process.returncode == 0, log
    assert list(directory.iterdir()) == []
    assert sorted(path.name for path in shm_dir.iterdir()) == ["arena.data", "arena.meta"]
    assert '"event": "serving"' in log
    assert '"event": "stopped"' in log


def test_directories_are_made(paths):
    directory, _ = paths
    daemon = Daemon(directory / "a/b", dram="8MiB", shm_dir=directory / "s/t")
    with daemon:
        assert mode(directory / "s/t") == 0o700


@pytest.fixture
def heeded_signals():
    """A daemon inherits what is ignored (under nohup, in the background of a script): here nothing is."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in STOPS[1:]}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heeded_signals")
@pytest.mark.parametrize("number", STOPS)
def test_a_signal_stops_it(start_daemon, number):
    daemon = start_daemon("8MiB")
    daemon.signal(number)
    assert daemon.process.wait(20) == 0
    assert daemon.leftovers() == []


def test_a_stop_waits_for_leases_and_grants_none_meanwhile(start_daemon):
    daemon = start_daemon("8MiB", "--drain-timeout", "20s")
    with daemon.client() as client:
        ns = client.namespace({"model": "m"}, chunk_bytes=65536)
        keys = keys_of("a", 4)
        store(ns, keys)
        with ns.lease(keys) as read:
            assert len(read.keys) == 4
            daemon.signal(signal.SIGTERM)
            until(lambda: daemon.stats().counters["draining"], "draining")
            with pytest.raises(Draining), daemon.client():
                pass
            assert daemon.alive
        assert daemon.process.wait(10) == 0
    assert daemon.leftovers() == []


@pytest.mark.parametrize(("timeout", "second"), [("100ms", False), ("60s", True)])
def test_the_drain_is_bounded_and_a_second_signal_skips_it(start_daemon, timeout, second):
    daemon = start_daemon("8MiB", "--drain-timeout", timeout)
    with daemon.client() as client:
        ns = client.namespace({"model": "m"}, chunk_bytes=65536)
        store(ns, keys_of("a", 1))
        with ns.lease(keys_of("a", 1)):
            daemon.signal(signal.SIGTERM)
            until(lambda: '"event": "draining"' in daemon.log(), "draining")
            if second:
                daemon.signal(signal.SIGTERM)
            assert daemon.process.wait(10) == 0
    assert '"leases_left": 1' in daemon.log()
    assert daemon.leftovers() == []


def test_a_second_daemon_is_told_who_is_there(start_daemon, paths):
    daemon = start_daemon("8MiB")
    pid = f"pid {daemon.process.pid}"
    assert_refused(serve(paths, "--address", daemon.address), "address =", "another kvtier daemon", pid)
    assert_refused(serve(paths, "--shm-dir", daemon.shm_dir), "shm_dir =", "another kvtier daemon", pid)
    assert daemon.stats().counters["data_bytes"] == 8 << 20


def test_what_a_killed_daemon_left_behind_hinders_nobody(start_daemon):
    daemon = start_daemon("8MiB")
    boot_id = daemon.stats().boot_id
    daemon.kill()
    assert len(daemon.leftovers()) == 4  # two sockets, two locks
    daemon.start()
    assert daemon.stats().boot_id != boot_id


def test_paths_that_cannot_be_used(paths):
    directory, shm_dir = paths
    (directory / "k.sock").write_text("precious")
    assert_refused(serve(paths), "address", "k.sock exists and is not a socket")
    assert (directory / "k.sock").read_text() == "precious"
    (directory / "k.sock").unlink()

    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(directory / "k.sock"))
        stranger.listen()
        assert_refused(serve(paths), "another process listens on", "k.sock")
    (directory / "k.sock").unlink()

    (directory / "file").write_text("")
    assert_refused(serve(paths, "--shm-dir", f"{directory}/file"), "shm_dir", "not a directory")
    assert_refused(serve(paths, "--shm-dir", f"{directory}/file/x"), "shm_dir", "cannot be made")
    assert_refused(serve(paths, "--address", f"unix:{directory}/file/k.sock"), "address", "not a directory")
    assert_refused(serve(paths, "--shm-dir", "/proc/kvtier"), "shm_dir = '/proc/kvtier' cannot be made")

    shm_dir.mkdir(mode=0o777)
    shm_dir.chmod(0o777)
    assert_refused(serve(paths), "shm_dir", "mode 0777")
    shm_dir.rmdir()
    shm_dir.symlink_to(directory)
    assert_refused(serve(paths), "shm_dir", "not a directory")
    assert [path.name for path in directory.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user(paths):
    _, shm_dir = paths
    shm_dir.mkdir(mode=0o700)
    os.chown(shm_dir, 65534, 65534)
    assert_refused(serve(paths), "belongs to uid 65534")


def test_bad_values_end_with_one_line(paths):
    assert_refused(serve(paths, "--dram", "100TiB"), "dram = 100 TiB", "larger than")
    assert_refused(serve(paths, KVTIER_POLICY="arc"), "policy = 'arc' (from KVTIER_POLICY)", "'s3fifo'")
    assert_refused(serve(paths, "--http", "256.0.0.1:1"), "http = '256.0.0.1:1' cannot be listened on")
    assert_refused(serve(paths, "--address", "0.0.0.0:7"), "address = '0.0.0.0:7'", "TLS")
    assert_refused(serve(paths, "--storage", "mnt"), "storage = 'mnt'", "absolute")
    done = serve(paths, "--stowage", "/mnt")
    assert done.returncode == 2
    assert "No such option" in done.stderr
    directory, shm_dir = paths
    assert list(directory.iterdir()) == []
    assert not shm_dir.exists() or list(shm_dir.iterdir()) == []


def test_a_file_configures_it(paths):
    directory, shm_dir = paths
    file = directory / "kvtier.toml"
    file.write_text('dram = "12MiB"\npolicy = "s3fifo"\nlog_format = "human"\n')
    daemon = Daemon(directory, dram="8MiB", shm_dir=shm_dir, options=("--config", str(file)))
    with daemon:
        assert daemon.counters()["data_bytes"] == 8 << 20  # the flag wins
        assert "s3fifo" in daemon.log()
        assert '"event"' not in daemon.log()
    file.write_text("drams = 1\n")
    assert_refused(serve(paths, "--config", file), "drams", "did you mean dram?")


def test_a_tcp_address_on_loopback(paths):
    directory, shm_dir = paths
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    daemon = Daemon(directory, dram="8MiB", shm_dir=shm_dir)
    daemon.command[daemon.command.index(daemon.address)] = daemon.address = address
    with daemon, daemon.control() as control:
        assert control.open_namespace('{"model":"m"}', 65536).chunk_bytes == 65536
        assert control.attach("test", "").session_socket.endswith(f"/{address.replace(':', '-')}.session")
    assert daemon.process.returncode == 0


def test_the_service_manager_is_told(paths, monkeypatch):
    directory, shm_dir = paths
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(20)
        manager.bind(str(directory / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(directory / "notify"))
        with Daemon(directory, dram="8MiB", shm_dir=shm_dir):
            assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"STOPPING=1"


def test_two_daemons_side_by_side():
    with running_daemon("8MiB") as one, running_daemon("8MiB") as other:
        assert one.stats().boot_id != other.stats().boot_id
