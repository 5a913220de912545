"""kvtier: `kvtier serve`, and the calls of an adapter on host tensors."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from faces import CHUNK_BYTES, CHUNKS, Face, Seen

from kvtier.client.client import Client
from kvtier.demo.daemon import SHM, LocalDaemon, held

BLOCKS = 16  # of a chunk
LOAD_MS = 5000


class KvtierFace:
    def __init__(self, address: str) -> None:
        logging.getLogger("kvtier").setLevel(logging.CRITICAL)
        self.seen = Seen()
        self._client = Client.connect(address, name="peers", managed=True)
        self._ns = self._client.namespace({"benchmark": "peers"}, CHUNK_BYTES)
        self._tensors = np.zeros((CHUNKS, CHUNK_BYTES), np.uint8)
        self._copies = None
        self._attachment = 0
        self._job = 0

    def store(self, prompt: int) -> None:
        with self.seen.timed("reserve"):
            grants = self._ns.reserve_slots(_keys(prompt))
        count = len(grants)
        wanted = np.flatnonzero(grants.grants == 0)
        self._tensors[: len(wanted)] = _content(prompt)[wanted]
        stored = 0
        try:
            stored = self._move("store", grants)
        finally:
            with self.seen.timed("commit"):
                self._ns.commit_slots(grants, (np.arange(count) < stored).astype(np.uint8))
        self.seen.stored += stored

    def load(self, prompt: int) -> None:
        keys = _keys(prompt)
        with self.seen.timed("lookup"):
            hit = self._ns.lookup(keys)
        if not hit:
            return
        with self.seen.timed("lease"):
            lease = self._ns.lease_slots(keys)
        try:
            self._tensors[:] = 0
            valid = self._move("load", lease)
        finally:
            with self.seen.timed("release"):
                self._ns.release_slots(lease)
        same = (self._tensors[:valid] == _content(prompt)[:valid]).all(axis=1)
        self.seen.served += valid
        self.seen.wrong += int((~same).sum())

    def _move(self, direction: str, lease: object) -> int:
        if not len(lease):
            return 0
        copies = self._copy_engine()
        if lease.attachment != self._attachment:
            raise RuntimeError("the lease is of an earlier session")
        self._job += 1
        blocks = np.arange(len(lease) * BLOCKS, dtype=np.int64)
        with self.seen.timed(direction):
            copies.submit(self._job, direction, [self._layout], [len(blocks)], blocks, blocks, lease.refs)
            if not copies.wait([self._job], 30.0):
                raise TimeoutError(direction)
        ((_, _, _, _, valid),) = copies.poll()
        return valid

    def _copy_engine(self) -> object:
        if self._copies is None or self._client.attachment != self._attachment:
            attachment = self._client.attachment
            copies = self._client.copy_engine(threads=1, load_deadline_ms=LOAD_MS)
            if self._copies is not None:
                self._copies.close()
            page = CHUNK_BYTES // BLOCKS
            self._layout = copies.add_layout(
                [(self._tensors.ctypes.data, page, page)], CHUNKS * BLOCKS, BLOCKS
            )
            self._copies, self._attachment = copies, attachment
        return self._copies


class KvtierServer:
    name = "kvtier"

    def __init__(self, disk: bool) -> None:
        self._shm = TemporaryDirectory(prefix="kvt-peers-", dir=SHM)
        self._directory = TemporaryDirectory(prefix="kvt-peers-")
        self._disk = Path(self._directory.name, "disk")
        self._disk.mkdir()
        options = ("--storage", str(self._disk), "--storage-poll", "100ms", "--storage-segment", "1MiB")
        directory = Path(self._directory.name)
        self._daemon = LocalDaemon(
            directory, dram="256MiB", shm_dir=Path(self._shm.name, "arena"), options=options if disk else ()
        )

    @property
    def pid(self) -> int:
        return self._daemon.process.pid

    def start(self) -> None:
        self._daemon.start()

    def start_empty(self) -> None:
        self._daemon.start(fresh=True)

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    def disk_files(self) -> list[Path]:
        return sorted(self._disk.rglob("*.kvs"))

    def face(self) -> Callable[[], Face]:
        return partial(KvtierFace, self._daemon.address)

    def held(self) -> int:
        return len(held(self._daemon.stats()))

    def shm_files(self) -> int:
        return sum(len(files) for _, _, files in os.walk(self._shm.name))

    def close(self) -> None:
        self._daemon.kill()
        self._shm.cleanup()
        self._directory.cleanup()


def _keys(prompt: int) -> np.ndarray:
    keys = np.zeros((CHUNKS, 4), np.uint64)
    keys[:, 0] = (np.uint64(prompt * CHUNKS) + np.arange(1, CHUNKS + 1, dtype=np.uint64)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    keys[:, 1] = prompt
    return keys.view(np.uint8)


def _content(prompt: int) -> np.ndarray:
    return np.random.default_rng(prompt).integers(0, 256, (CHUNKS, CHUNK_BYTES), np.uint8)
