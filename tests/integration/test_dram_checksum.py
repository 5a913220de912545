"""Chunks in memory with a checksum, through a real daemon: damaged ones are dropped and named."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Daemon, bytes_of, keys_of, load, store, until

CHUNK = 64 << 10
PRINT = {"model": "checked"}
StartDaemon = Callable[..., Daemon]


def verify(shm_dir: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    run = (sys.executable, "-m", "kvtier.cli.main", "verify", "--arena", "--shm-dir", str(shm_dir), *more)
    return subprocess.run(run, capture_output=True, text=True, timeout=60)


def spoil(daemon: Daemon, offset: int) -> None:
    with (daemon.shm_dir / "arena.data").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


def test_a_damaged_chunk_is_found_dropped_and_never_served(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("64MiB", "--dram-checksum", "always")
    keys = keys_of("checked", 40)
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        assert store(ns, keys) == 40
        until(lambda: daemon.counters()["checksums"] == 40, "a checksum of each")
        content = bytes_of(keys[7], CHUNK)
        offset = (daemon.shm_dir / "arena.data").read_bytes().index(content)
    beside = verify(daemon.shm_dir, "--json")
    assert beside.returncode == 0, beside.stderr
    assert json.loads(beside.stdout) == {
        "sound": True,
        "chunks": 40,
        "checked": 40,
        "unchecked": 0,
        "changed": 0,
        "bytes": 40 * CHUNK,
        "damaged": [],
    }
    daemon.kill()
    spoil(daemon, offset + CHUNK - 1)
    found = verify(daemon.shm_dir)
    assert found.returncode == 1, found.stderr
    assert f"bad   at {offset} " in found.stdout
    assert f"key {keys[7].hex()}" in found.stdout
    assert "40 chunks, 40 checked" in found.stdout

    daemon.start()
    until(lambda: daemon.counters()["unverified_slots"] == 0, "each is verified")
    counters = daemon.counters()
    assert (counters["checksum_passes"], counters["checksum_failures"]) == (39, 1)
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        assert ns.lookup(keys[7:8]).chunks == 0
        assert load(ns, keys) == 7
        assert load(ns, keys[8:]) == 32
        assert store(ns, keys[7:8]) == 1
        assert load(ns, keys) == 40
    until(lambda: keys[7].hex() in daemon.log(), "it is named in the log")
    assert daemon.log().count("a chunk in memory was damaged, and was dropped") == 1
    until(lambda: daemon.counters()["checksums"] == 1, "the new one has a checksum")
    assert verify(daemon.shm_dir).returncode == 0


def test_off_makes_none_and_forgets_those_there_were(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("64MiB", "--dram-checksum", "always")
    keys = keys_of("off", 20)
    with daemon.client() as client:
        assert store(client.namespace(PRINT, CHUNK), keys) == 20
    until(lambda: daemon.counters()["checksums"] == 20, "a checksum of each")
    with_them = (daemon.shm_dir / "arena.meta").stat().st_blocks
    assert daemon.stop() == 0
    daemon.command[daemon.command.index("always")] = "off"
    daemon.start()
    assert (daemon.shm_dir / "arena.meta").stat().st_blocks < with_them
    with daemon.client() as client:
        assert load(client.namespace(PRINT, CHUNK), keys) == 20
    report = json.loads(verify(daemon.shm_dir, "--json").stdout)
    assert (report["chunks"], report["unchecked"], report["checked"]) == (20, 20, 0)
    assert daemon.stop() == 0
    daemon.command[daemon.command.index("off")] = "always"
    daemon.start()  # what has none gets one
    until(lambda: daemon.counters()["checksums"] == 20, "a checksum of each")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_bytes(b"x" * 8192)])
def test_an_arena_that_cannot_be_read(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "arena.meta")
    (tmp_path / "arena.data").touch()
    done = verify(tmp_path)
    assert done.returncode == 2
    assert "the arena cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_either_a_path_or_the_arena(tmp_path: Path) -> None:
    for arguments in ((), ("--arena", str(tmp_path))):
        run = (sys.executable, "-m", "kvtier.cli.main", "verify", *arguments)
        done = subprocess.run(run, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert "either PATH or --arena" in done.stderr
