"""A daemon that starts with an empty arena on a root that holds many records: how long to the first hit?"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvtier.bench.daemon import KeyArray, client_of, random_keys
from kvtier.bench.report import BenchSkipped
from kvtier.bench.storage_host import FINGERPRINT, StorageHost
from kvtier.client.namespace import Namespace
from kvtier.demo.daemon import temporary_daemon

_CHUNK_BYTES: Final = 4096
_BATCH: Final = 32768
_PATIENCE_S: Final = 120.0
_PROBES: Final = 64
_LOOK_S: Final = 0.001
_DAEMON: Final = ("64MiB", "--storage-quota", "256GiB")  # a catalog for two million records


@dataclass(frozen=True)
class Restarted:
    """Seconds from the start of `kvtier serve`."""

    first_hit_s: float  # the bytes of a chunk from storage are readable
    all_s: float  # records from all over the root are found
    index_bytes: int
    index_s: float  # to read the index files once, and nothing else


def restart(root: Path, records: int) -> Restarted:
    """Fills the root with real records (the smallest chunks there are), by a host that then leaves."""
    needed_bytes = records * (_CHUNK_BYTES + 4096) * 5 // 4
    status = os.statvfs(root)
    if status.f_bavail * status.f_frsize < needed_bytes:
        raise BenchSkipped(
            f"needs {needed_bytes / 2**30:.1f} GiB below {root}; TMPDIR may name another directory"
        )
    keys = random_keys(records, seed=9)
    with StorageHost(
        root, dram_bytes=4 * _BATCH * _CHUNK_BYTES, chunk_bytes=_CHUNK_BYTES, records_max=records * 5 // 4
    ) as host:
        for first in range(0, records, _BATCH):
            host.demote_all(keys[first : first + _BATCH])
    index_bytes, index_s = _read_indexes(root)
    probes = [keys[i : i + 1] for i in range(0, records, max(records // _PROBES, 1))]
    began_s = time.perf_counter()
    with (
        temporary_daemon(*_DAEMON, "--storage", str(root), prefix="kvt-bench-") as daemon,
        client_of(daemon) as client,
    ):
        namespace = client.namespace(FINGERPRINT, _CHUNK_BYTES)
        lease = namespace.lease_slots(probes[_found(namespace, probes)])
        if namespace.wait_slots(lease, _PATIENCE_S) != 1:
            raise BenchSkipped("the first hit did not come back from storage")
        first_hit_s = time.perf_counter() - began_s
        namespace.release_slots(lease)
        for probe in probes:
            _found(namespace, [probe])
        return Restarted(first_hit_s, time.perf_counter() - began_s, index_bytes, index_s)


def _found(namespace: Namespace, probes: list[KeyArray]) -> int:
    """Looks until one of them is found; which."""
    deadline_s = time.perf_counter() + _PATIENCE_S
    while time.perf_counter() < deadline_s:
        for number, probe in enumerate(probes):
            if namespace.lookup_count(probe):
                return number
        time.sleep(_LOOK_S)
    raise BenchSkipped(f"nothing on storage was found in {_PATIENCE_S:g} s")


def _read_indexes(root: Path) -> tuple[int, float]:
    """(bytes of all indexes, seconds to read them); the kernel is asked to forget them before and after."""
    paths = sorted(root.rglob("*.idx"))
    if not paths:
        raise BenchSkipped("the host has left no index")
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began_s = time.perf_counter()
    read_bytes = sum(len(path.read_bytes()) for path in paths)
    took_s = time.perf_counter() - began_s
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return read_bytes, took_s
