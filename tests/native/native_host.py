"""A daemon's native half on memfds, in this process or in a child, and sessions attached to it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tpu_sync_native as native

MIB = 1 << 20
PAGE = 4096
BOOT_ID = 0x5EED


def memfd(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def key(number: int, length: int = 32) -> bytes:
    return number.to_bytes(8, "little") + bytes(length - 8)


def keys(first: int, count: int, length: int = 32) -> list[bytes]:
    return [key(first + i, length) for i in range(count)]


class Files:
    """The three files of a daemon, and rings for sessions."""

    def __init__(self) -> None:
        self.data_fd, self.meta_fd, self.doorbell_fd = memfd("data"), memfd("meta"), memfd("doorbell")
        self.ring_fds: list[int] = []

    def ring(self) -> int:
        self.ring_fds.append(memfd("ring"))
        return self.ring_fds[-1]

    def session(self, ring_fd: int, deadline_ms: int = 10_000) -> native.Session:
        return native.Session(
            data_fd=self.data_fd,
            meta_fd=self.meta_fd,
            ring_fd=ring_fd,
            doorbell_fd=self.doorbell_fd,
            deadline_ms=deadline_ms,
        )

    def close(self) -> None:
        for fd in (self.data_fd, self.meta_fd, self.doorbell_fd, *self.ring_fds):
            os.close(fd)


class Host:
    """A store in this process. `start=False` leaves its threads off: nobody answers a ring."""

    def __init__(self, dram_bytes: int = 16 * MIB, *, start: bool = True, **options: Any) -> None:
        self.files = Files()
        self.store = native.Store(
            data_fd=self.files.data_fd,
            meta_fd=self.files.meta_fd,
            doorbell_fd=self.files.doorbell_fd,
            dram_bytes=dram_bytes,
            boot_id=BOOT_ID,
            **options,
        )
        self.sessions = 0
        if start:
            self.start()

    def start(self) -> None:
        self.store.start()
        wait_populated(self.store)

    def attach(self, deadline_ms: int = 10_000, group: int | None = None) -> tuple[int, native.Session]:
        self.sessions += 1
        number = self.sessions
        ring_fd = self.files.ring()
        self.store.open_session(number, number if group is None else group, os.getpid(), ring_fd)
        return number, self.files.session(ring_fd, deadline_ms)

    def close(self) -> None:
        self.store.stop()
        self.files.close()


def stored(session: native.Session, ns: int, names: list[bytes]) -> native.SlotRefs:
    """Reserve and commit chunks that are not there yet."""
    write = session.reserve(ns, names)
    assert list(write.grants) == [0] * len(names)
    assert session.commit(write.lease) is True
    return write.refs


def wait_populated(store: native.Store) -> None:
    """Until the whole arena is there; population is fast here, and a failure says so itself."""
    deadline_s = time.monotonic() + 30
    while store.populated_bytes() < store.stats()["data_bytes"]:
        assert store.population_error() is None, store.population_error()
        assert time.monotonic() < deadline_s, "the arena is not populated within 30 s"
        time.sleep(0.001)


@contextmanager
def child_serving(files: Files, ring_fd: int, dram_bytes: int = 16 * MIB) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the store and serves one ring; its namespace index is 0 and its session 1."""
    fds = (files.data_fd, files.meta_fd, files.doorbell_fd, ring_fd)
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("serve_store.py")), *map(str, fds), str(dram_bytes)],
        pass_fds=fds,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait(timeout=30)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
