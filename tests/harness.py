"""What every test with a real daemon shares: the daemon, bytes that can be verified, child processes."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kvtier import Client, Namespace
from kvtier.client.channel import ControlChannel
from kvtier.demo.daemon import SHM, LocalDaemon, held, temporary_paths

# Longest wait over shared memory in tests that are not about that wait: a loaded machine must not fail them.
PATIENT_MS = 5000
SETTLE_S = 10.0

D = TypeVar("D", bound="Daemon")


def until(
    condition: Callable[[], Any],
    what: str,
    timeout_s: float = SETTLE_S,
    between: Callable[[], object] = lambda: time.sleep(0.01),
) -> Any:
    """Poll for the effect of another process; its first true value, or an AssertionError."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s:g} s"
        between()


class Daemon(LocalDaemon):
    """A daemon for tests, with what tests ask of it."""

    def client(self, **options: Any) -> Client:
        """A client of it, patient unless told otherwise."""
        return Client.connect(self.address, **({"deadline_ms": PATIENT_MS, "timeout_s": 10.0} | options))

    def control(self) -> ControlChannel:
        """Its control channel; close it."""
        return ControlChannel(self.address, timeout_s=10.0)

    def counters(self) -> dict[str, int]:
        """Its counters."""
        return self.stats().counters

    def assert_nothing_held(self) -> None:
        """No session, lease, pin, reserved or quarantined slot, as soon as the ends were seen."""
        deadline_s = time.monotonic() + SETTLE_S
        while found := held(self.stats()):
            assert time.monotonic() < deadline_s, f"held after all sessions ended: {found}\n{self.log()}"
            time.sleep(0.01)

    def finish(self) -> None:
        """The checks at the end of every test: nothing held, an orderly stop, no file left."""
        if self.alive:
            self.assert_nothing_held()
            code = self.stop()
            assert code == 0, f"kvtier serve ended with {code}:\n{self.log()}"
            assert self.leftovers() == []


@contextmanager
def running_daemon(
    dram: str = "64MiB",
    *options: str,
    shm_root: str = SHM,
    code: str | None = None,
    kind: type[D] = Daemon,  # type: ignore[assignment]
) -> Iterator[D]:
    """A started daemon on temporary paths; `Daemon.finish` runs when the block ends without an error.

    code: what the process runs instead of `kvtier serve` alone, to plant a fault.
    """
    with temporary_paths(shm_root=shm_root) as (directory, shm_dir):
        daemon = kind(directory, dram=dram, shm_dir=shm_dir, options=options)
        if code is not None:
            daemon.command[2] = code
        daemon.start()
        try:
            yield daemon
            daemon.finish()
        finally:
            if daemon.alive:
                daemon.kill()


def key_of(*parts: object) -> bytes:
    """A 32-byte key of these parts."""
    return hashlib.sha256(repr(parts).encode()).digest()


def keys_of(name: object, count: int, start: int = 0) -> list[bytes]:
    """`count` keys of one sequence."""
    return [key_of(name, i) for i in range(start, start + count)]


def bytes_of(key: bytes, chunk_bytes: int, version: int = 0) -> bytes:
    """The one right content of a chunk: every 8 bytes depend on the key, the version and their place."""
    seed = int.from_bytes(hashlib.sha256(key + version.to_bytes(8, "little")).digest()[:8], "little")
    words = np.arange(chunk_bytes // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (words ^ np.uint64(seed)).tobytes()


def store(ns: Namespace, keys: list[bytes], version: int = 0) -> int:
    """Store what is not there of these keys; how many chunks were written."""
    with ns.reserve(keys) as write:
        for key, view in zip(write.keys, write.views, strict=True):
            view[:] = bytes_of(key, ns.chunk_bytes, version)
        assert write.commit()
        return len(write.keys)


def load(ns: Namespace, keys: list[bytes], version: int = 0) -> int:
    """Load the leading hits, from whichever tier, and verify every byte; how many chunks there were."""
    with ns.lease(keys) as read:
        assert read.wait(SETTLE_S), f"lost on the way from storage: {[key.hex() for key in read.failed]}"
        for key, view in zip(read.keys, read.views, strict=True):
            assert view == bytes_of(key, ns.chunk_bytes, version), f"wrong bytes under {key.hex()}"
        assert read.valid()
        assert read.failed == []
        return len(read.keys)


@contextmanager
def child(code: str, *arguments: object, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """A Python child that runs `code` (sys.argv[1:] are the arguments); killed at the end of the block."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths} | variables,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SETTLE_S)


def line_of(process: "subprocess.Popen[str]", what: str, timeout_s: float = 30.0) -> str:
    """The next line that a child prints."""
    assert process.stdout is not None
    import select

    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    assert ready, f"{what}: no word from the child in {timeout_s:g} s"
    line = process.stdout.readline()
    assert line, f"{what}: the child ended ({process.wait(SETTLE_S)})"
    return line.strip()
