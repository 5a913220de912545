"""Addresses as people write them reach the daemon, and waiting for one leaves nothing behind."""

import subprocess
import sys
import threading

from harness import Daemon, keys_of, load, store, until

from kvtier.client.channel import ControlChannel
from kvtier.demo.daemon import temporary_paths


def test_a_path_with_spaces_and_percent_signs() -> None:
    with (
        temporary_paths("kvt 100%41 ") as (directory, shm_dir),
        Daemon(directory, dram="8MiB", shm_dir=shm_dir) as daemon,
    ):
        with daemon.client() as client:
            ns = client.namespace({"model": "address"}, 4096)
            assert store(ns, keys_of("a", 2)) == 2
            assert load(ns, keys_of("a", 2)) == 2
            assert client.stats()["namespaces"][0]["chunks"] == 2
        command = [sys.executable, "-m", "kvtier.cli.main", "ls", "--address", daemon.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        assert "address" in done.stdout
        daemon.finish()


def test_waiting_for_a_daemon_that_does_not_come_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        with ControlChannel("unix:/tmp/kvtier-nobody.sock", timeout_s=1.0) as control:
            assert not control.wait_reachable(0.05)

    def ended() -> bool:  # grpc's own threads end soon after their channel
        return set(threading.enumerate()) <= before

    until(ended, "the channels' threads have ended")


def test_waiting_for_a_daemon_that_is_there(daemon: Daemon) -> None:
    with daemon.control() as control:
        assert control.wait_reachable(10.0)
