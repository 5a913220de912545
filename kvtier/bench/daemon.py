"""The daemon a benchmark measures: a real `kvtier serve` on temporary paths, and chunks put into it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt

from kvtier.bench import machine
from kvtier.bench.report import BenchSkipped
from kvtier.client.client import Client
from kvtier.client.namespace import Namespace
from kvtier.demo.daemon import LocalDaemon, temporary_daemon

CHUNK_BYTES: Final = 4096  # the smallest slot: what is measured here is per chunk, not per byte
KEY_BYTES: Final = 32
_PATIENT_MS: Final = 5000
_POPULATED_S: Final = 300.0
_BATCH: Final = 4096

KeyArray = npt.NDArray[np.uint8]  # (count, KEY_BYTES)


@contextmanager
def serving(dram_bytes: int, *options: str) -> Iterator[LocalDaemon]:
    """A daemon whose arena is all there. BenchSkipped when the machine has not the memory."""
    if machine.free_bytes() < dram_bytes * 1.2:
        raise BenchSkipped(
            f"needs an arena of {dram_bytes / 2**30:.1f} GiB; memory and /dev/shm have "
            f"{machine.free_bytes() / 2**30:.1f} GiB left"
        )
    with temporary_daemon(str(dram_bytes), *options, prefix="kvt-bench-") as daemon:
        _await_populated(daemon)
        yield daemon


def _await_populated(daemon: LocalDaemon) -> None:
    deadline_s = time.monotonic() + _POPULATED_S
    while (counters := daemon.stats().counters)["populated_bytes"] < counters["data_bytes"]:
        if time.monotonic() > deadline_s:
            raise BenchSkipped(f"the arena was not populated in {_POPULATED_S:g} s")
        time.sleep(0.05)


@contextmanager
def client_of(daemon: LocalDaemon, name: str = "bench") -> Iterator[Client]:
    """A client of it, patient: a busy machine must not end a benchmark."""
    client = Client.connect(daemon.address, name=name, deadline_ms=_PATIENT_MS)
    try:
        yield client
    finally:
        client.close()


def open_namespace(client: Client, name: str, chunk_bytes: int = CHUNK_BYTES) -> Namespace:
    """A namespace of the benchmark's own."""
    return client.namespace({"benchmark": name}, chunk_bytes)


def random_keys(count: int, seed: int) -> KeyArray:
    """Keys that repeat only with the seed."""
    return np.random.default_rng(seed).integers(0, 256, (count, KEY_BYTES), dtype=np.uint8)


def as_list(keys: KeyArray) -> list[bytes]:
    """The same keys as engines have them."""
    return [row.tobytes() for row in keys]


def fill(namespace: Namespace, keys: KeyArray) -> None:
    """Make all these chunks readable (their bytes are left as they are)."""
    for start in range(0, len(keys), _BATCH):
        batch = keys[start : start + _BATCH]
        grant = namespace.reserve_slots(batch)
        if len(grant) != len(batch):
            raise BenchSkipped(f"the arena granted {len(grant)} of {len(batch)} chunks after {start}")
        namespace.commit_slots(grant, wait=True)
