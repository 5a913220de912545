"""A host's two tiers in this process, without a daemon around them: a real store, real storage on a
directory, and one engine's session.
"""

import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from kvtier.bench import machine
from kvtier.bench.daemon import KeyArray
from kvtier.bench.report import BenchSkipped
from kvtier.format.fingerprint import canonical_json, namespace_id
from kvtier.io import native
from kvtier.io.shm import memfd

FINGERPRINT: Final = {"benchmark": "storage"}
_SESSION: Final = 1
_READY_S: Final = 60.0
_MOVE_S: Final = 300.0
_CALL_MS: Final = 10_000
_FILL_BYTES: Final = 8 << 20
_LOOK_S: Final = 0.002
_TRIES: Final = 20


class StorageHost:
    """One namespace of one chunk size."""

    def __init__(self, root: Path, *, dram_bytes: int, chunk_bytes: int, records_max: int) -> None:
        """BenchSkipped when the machine has not the memory."""
        if machine.free_bytes() < dram_bytes * 1.2:
            raise BenchSkipped(f"needs {dram_bytes >> 20} MiB of memory in /dev/shm and beside it")
        self.chunk_bytes = chunk_bytes
        with ExitStack() as undo:
            fds = {
                name: memfd(f"kvt-bench-{name}") for name in ("data", "meta", "doorbell", "ring", "catalog")
            }
            for fd in fds.values():
                undo.callback(os.close, fd)
            boot_id = secrets.randbits(63)
            self._store = native.Store(
                data_fd=fds["data"],
                meta_fd=fds["meta"],
                doorbell_fd=fds["doorbell"],
                dram_bytes=dram_bytes,
                slots_max=dram_bytes // chunk_bytes,
                boot_id=boot_id,
            )
            undo.callback(self._store.stop)
            self._store.start()
            self._storage = native.Storage(
                self._store,
                root=str(root),
                catalog_fd=fds["catalog"],
                host_id=secrets.token_bytes(16),
                boot_id=boot_id,
                # No other host, and whatever else lies on this file system is not the benchmark's business.
                options={"records_max": records_max, "free_low": 0.0, "free_high": 0.0},
            )
            undo.callback(self._storage.stop, _READY_S)
            self._storage.check_root(_READY_S)
            self._storage.start()
            self._ns = self._open_namespace()
            self._store.open_session(_SESSION, _SESSION, os.getpid(), fds["ring"])
            self._session = native.Session(
                data_fd=fds["data"],
                meta_fd=fds["meta"],
                ring_fd=fds["ring"],
                doorbell_fd=fds["doorbell"],
                catalog_fd=fds["catalog"],
                deadline_ms=_CALL_MS,
            )
            undo.callback(self._session.close)
            self._undo = undo.pop_all()

    def _open_namespace(self) -> int:
        canonical = canonical_json(FINGERPRINT)
        ns = self._store.open_namespace(namespace_id(canonical), self.chunk_bytes)
        meta = f'{{"chunk_bytes":{self.chunk_bytes},"fingerprint":{canonical}}}\n'
        self._storage.open_namespace(ns, namespace_id(canonical), self.chunk_bytes, meta)
        self._await(lambda: self._storage.namespaces()[0]["state"] == "ready", "the namespace on storage")
        data_bytes = self._store.stats()["data_bytes"]
        self._await(lambda: self._store.populated_bytes() >= data_bytes, "the arena")
        return ns

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _READY_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise BenchSkipped(f"{what} was not ready in {_READY_S:g} s")
            time.sleep(_LOOK_S)

    # ---- what is measured ----

    def fill(self, seed: int = 0) -> None:
        """Random bytes in every slot there is: zeros are too easy for some disks."""
        noise = np.random.default_rng(seed).integers(0, 256, _FILL_BYTES, dtype=np.uint8)
        data_bytes = self._store.stats()["data_bytes"]
        for start in range(0, data_bytes, _FILL_BYTES):
            count = min(_FILL_BYTES, data_bytes - start)
            with self._session.view(start, count, True) as view:
                np.frombuffer(view, np.uint8)[:] = noise[:count]
            noise[:8] += 1

    def store(self, keys: KeyArray) -> None:
        """Commit chunks of these keys; their bytes are what lies in their slots."""
        write = self._session.reserve(self._ns, keys)
        if len(write.refs) != len(keys):
            raise BenchSkipped(f"the arena granted {len(write.refs)} of {len(keys)} chunks")
        self._session.commit(write.lease)

    def demote_all(self, keys: KeyArray) -> None:
        """Until all of them are on storage; what a busy disk did not take in time is stored again."""
        wanted = self._storage.stats()["storage_records"] + len(keys)
        for _ in range(_TRIES):
            self.empty_dram()
            self.store(keys)
            self._storage.flush(_MOVE_S)
            if self._storage.stats()["storage_records"] >= wanted:
                return
        raise BenchSkipped(
            f"storage did not take {len(keys)} chunks in {_TRIES} tries: {self._storage.state()}"
        )

    def demote_s(self, keys: KeyArray) -> float:
        """Seconds from their commit until all of them are on storage, synced and to be found."""
        before = self._storage.stats()["storage_demoted_chunks"]
        began_s = time.perf_counter()
        self.store(keys)
        flushed = self._storage.flush(_MOVE_S)
        took_s = time.perf_counter() - began_s
        stats = self._storage.stats()
        if not flushed or stats["storage_demoted_chunks"] - before != len(keys):
            dropped = {name: value for name, value in stats.items() if "_dropped_" in name and value}
            raise BenchSkipped(
                f"not all of {len(keys)} chunks were demoted: {dropped}, {self._storage.state()}"
            )
        return took_s

    def empty_dram(self) -> None:
        """Evict all; what was demoted is on storage alone then."""

        def is_empty() -> bool:
            self._store.evict(self._ns, 1 << 62)  # not what is leased: a release is posted
            return not self._store.stats()["committed_slots"]

        self._await(is_empty, "an empty arena")

    def promote_s(self, keys: KeyArray) -> tuple[float, float]:
        """Seconds from the lease of these keys until the first chunk is readable, and until all are."""
        began_s = time.perf_counter()
        lease = self._session.lease(self._ns, keys)
        slots, generations = lease.refs.slots, lease.refs.generations
        first = self._session.wait_ready(slots[:1], generations[:1], _MOVE_S)
        first_s = time.perf_counter() - began_s
        ready = self._session.wait_ready(slots, generations, _MOVE_S)
        took_s = time.perf_counter() - began_s
        self._session.release(lease.lease)
        if first != 1 or ready != len(keys):
            failed = {
                name: value for name, value in self._storage.stats().items() if "_failed_" in name and value
            }
            raise BenchSkipped(f"{ready} of {len(keys)} chunks came back: {failed}, {self._storage.state()}")
        return first_s, took_s

    # ---- life ----

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves in order: segments are sealed."""
        self._undo.close()
