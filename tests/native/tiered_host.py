"""A daemon's native half with storage below it, on a directory of the test's own."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from native_host import BOOT_ID, Host, memfd

import tpu_sync_native as native

WAIT_S = 60.0


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Looks until it holds; the storage tier's own threads get it there."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.002)


class TieredHost:
    """Host and Storage; namespaces of one chunk size, each opened in both tiers."""

    def __init__(self, root: Path, *, dram_bytes: int = 16 << 20, **options: Any) -> None:
        self.host = Host(dram_bytes, start=True, lease_ms=10**9)
        self.store = self.host.store
        self.catalog_fd = memfd("catalog")
        self.storage = native.Storage(
            self.store,
            root=str(root),
            catalog_fd=self.catalog_fd,
            host_id=os.urandom(16),
            boot_id=BOOT_ID,
            options={
                "records_max": 4096,
                "sync_ms": 50,
                "poll_ms": 100,
                "heartbeat_ms": 100,
                "free_low": 0.0,  # whatever else lies on the file system of the tests
                "free_high": 0.0,
                **options,
            },
        )
        self.storage.check_root(WAIT_S)
        self.storage.start()

    def open_namespace(self, number: int, chunk_bytes: int) -> int:
        id = bytes([number]) * 16
        ns = self.store.open_namespace(id, chunk_bytes)
        self.storage.open_namespace(ns, id, chunk_bytes, f'{{"test": {number}}}')
        self.await_ready(ns)
        return ns

    def await_ready(self, ns: int) -> None:
        """Until the namespace is opened, or its clear confirmed, on the root."""
        eventually(lambda: self._state(ns) == "ready", f"namespace {ns} ready, not {self._state(ns)}")

    def _state(self, ns: int) -> str:
        return str(next(row["state"] for row in self.storage.namespaces() if row["index"] == ns))

    def attach(self) -> tuple[int, native.Session]:
        self.host.sessions += 1
        number = self.host.sessions
        ring_fd = self.host.files.ring()
        self.store.open_session(number, number, os.getpid(), ring_fd)
        session = native.Session(
            data_fd=self.host.files.data_fd,
            meta_fd=self.host.files.meta_fd,
            ring_fd=ring_fd,
            doorbell_fd=self.host.files.doorbell_fd,
            catalog_fd=self.catalog_fd,
            deadline_ms=10_000,
        )
        return number, session

    def flush(self) -> None:
        assert self.storage.flush(WAIT_S)

    def close(self) -> None:
        try:
            assert self.storage.stop(WAIT_S)
        finally:
            self.host.close()
            os.close(self.catalog_fd)


def fill(session: native.Session, refs: native.SlotRefs, payloads: list[bytes]) -> None:
    for offset, payload in zip(refs.offsets, payloads, strict=True):
        session.view(int(offset), len(payload), True)[:] = payload


def chunk_payload(ns: int, number: int, chunk_bytes: int) -> bytes:
    return np.random.default_rng([ns, number]).bytes(chunk_bytes)
