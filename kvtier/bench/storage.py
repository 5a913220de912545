"""How fast do chunks go down to storage and come back, and what does a file a chunk cost instead?

Demotes: from the commit of many chunks until all of them are written, synced and to be found. Promotes: from
the lease of as many, with DRAM empty, until all are readable and verified; also until the first one is. Both
on the file system of TMPDIR, with random bytes. Files: each chunk in a file of its own, O_DIRECT, by four
threads, without sync or checksum, as engines' own file tiers do. Deletion: the files of the two, scaled
to 1 GiB. Restart: a daemon with an empty arena on a root with a million records, from its start until a chunk
from storage is readable.

Reference of the same run: fio, O_DIRECT, sequential, 2 MiB blocks (one at a time, and eight in flight through
io_uring; the better median counts), into a new file, with one fsync at the end; where fio is not installed,
one thread that does the same as its psync. A demote does more for its bytes: it syncs at every segment
(256 MiB), and what it wrote can be found. So 2 MiB chunks are also shown against fio with an fsync after as
many bytes. Before each measure the file system is synced, so that nobody pays for what another left behind.
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kvtier.bench import clock
from kvtier.bench.daemon import KeyArray, random_keys
from kvtier.bench.report import BenchSkipped, Budget, Result
from kvtier.bench.scale import Scale
from kvtier.bench.storage_host import StorageHost
from kvtier.bench.storage_peers import FilePerChunk, Sequential, check_direct
from kvtier.bench.storage_restart import restart

SEGMENT_BYTES: Final = 256 << 20  # the storage tier's default
CHUNKS_BYTES: Final = (64 << 10, 512 << 10, 2 << 20)
MOVES: Final = Budget(0.9, "ratio", ">=")
RESTART: Final = Budget(2.0)
_BUDGET_CHUNK_BYTES: Final = 2 << 20
_GB: Final = 1e9
_GIB: Final = 1 << 30


def run(scale: Scale) -> list[Result]:
    """All sides take turns."""
    total_bytes = scale.pick(32 << 20, 1 << 30)
    rounds = scale.pick(1, 3)
    records = scale.pick(20_000, 1_000_000)
    results = []
    with TemporaryDirectory(prefix="kvt-bench-") as directory:
        check_direct(Path(directory))
        if shutil.disk_usage(directory).free < 8 * total_bytes:
            raise BenchSkipped(
                f"needs {8 * total_bytes >> 30} GiB below {directory}; TMPDIR may name another"
            )
        for chunk_bytes in CHUNKS_BYTES:
            with TemporaryDirectory(dir=directory) as place:
                results += _chunks(Path(place), chunk_bytes, total_bytes, rounds)
        with TemporaryDirectory(dir=directory) as place:
            results += _restart(Path(place), records)
    return results


class _Round:
    """Both directions of the tier, new keys each time."""

    def __init__(self, host: StorageHost, chunks: int) -> None:
        self._host, self._chunks = host, chunks
        self._rounds = 0
        self.first_s: list[float] = []

    def demote(self) -> float:
        self._rounds += 1
        took_s = self._host.demote_s(self._keys())
        self._host.empty_dram()
        return took_s

    def promote(self) -> float:
        first_s, took_s = self._host.promote_s(self._keys())
        self._host.empty_dram()
        self.first_s.append(first_s)
        return took_s

    def _keys(self) -> KeyArray:
        return random_keys(self._chunks, seed=self._rounds)


def _chunks(place: Path, chunk_bytes: int, total_bytes: int, rounds: int) -> list[Result]:
    chunks = total_bytes // chunk_bytes
    size = f"{chunk_bytes >> 10} KiB" if chunk_bytes < 1 << 20 else f"{chunk_bytes >> 20} MiB"
    root = place / "root"
    root.mkdir()
    sequential = Sequential(place, total_bytes)
    files = FilePerChunk(place, chunk_bytes, chunks)
    with ExitStack() as stack:
        host = stack.enter_context(
            StorageHost(
                root,
                dram_bytes=total_bytes * 5 // 4,
                chunk_bytes=chunk_bytes,
                records_max=chunks * (rounds + 2),
            )
        )
        host.fill()
        tier = _Round(host, chunks)
        with_budget = chunk_bytes == _BUDGET_CHUNK_BYTES
        raw = {"raw write": sequential.measures("write"), "raw read": sequential.measures("read")}
        if with_budget:
            raw["durable write"] = sequential.measures("write", SEGMENT_BYTES)
        measures: dict[str, Callable[[], float]] = {
            **raw["raw write"],
            "demote": lambda: total_bytes / tier.demote(),
            **raw.get("durable write", {}),
            "files write": lambda: total_bytes / files.write_s(),
            **raw["raw read"],
            "promote": lambda: total_bytes / tier.promote(),
            "files read": lambda: total_bytes / files.read_s(),
        }
        measures = {name: _after_sync(measure) for name, measure in measures.items()}
        clock.in_turns(measures, 1)  # once for what is only paid the first time
        tier.first_s.clear()
        rates = {name: rate / _GB for name, rate in clock.medians(clock.in_turns(measures, rounds)).items()}
        rates |= {name: max(rates[way] for way in ways) for name, ways in raw.items()}
        first_ms = clock.median(tier.first_s) * 1e3
    budget = MOVES if with_budget else None

    def row(case: str, name: str, raw: str, held: Budget | None) -> Result:
        return Result(f"{case}, {size} chunks", rates[name], "GB/s", sequential.name, rates[raw], held)

    results = [
        row("demote", "demote", "raw write", budget),
        row("a file a chunk, written", "files write", "raw write", None),
        row("promote", "promote", "raw read", budget),
        row("a file a chunk, read", "files read", "raw read", None),
        Result(
            f"promote, until the first of {chunks}",
            first_ms,
            "ms",
            "until all",
            total_bytes / rates["promote"] / _GB * 1e3,
        ),
    ]
    if with_budget:
        durable = f"{sequential.name}, fsync every {SEGMENT_BYTES >> 20} MiB"
        case = f"demote, {size} chunks, as durable"
        results.insert(1, Result(case, rates["demote"], "GB/s", durable, rates["durable write"]))
    return [*results, _deletion(root, files, size, total_bytes)]


def _after_sync(measure: Callable[[], float]) -> Callable[[], float]:
    def measured() -> float:
        os.sync()
        return measure()

    return measured


def _deletion(root: Path, files: FilePerChunk, size: str, total_bytes: int) -> Result:
    segments = [*root.rglob("*.idx"), *root.rglob("*.kvs")]
    scale = _GIB / sum(path.stat().st_size for path in segments)
    began_s = time.perf_counter()
    for path in segments:
        path.unlink()
    took_s = (time.perf_counter() - began_s) * scale
    files_s = files.remove_s() * _GIB / total_bytes
    return Result(f"delete 1 GiB, {size} chunks", took_s * 1e3, "ms", "a file a chunk", files_s * 1e3)


def _restart(place: Path, records: int) -> list[Result]:
    root = place / "root"
    root.mkdir()
    took = restart(root, records)
    reference = f"reading {took.index_bytes >> 20} MiB of indexes"
    return [
        Result(
            f"restart, {records:,} records: first hit",
            took.first_hit_s,
            "s",
            reference,
            took.index_s,
            RESTART,
        ),
        Result(f"restart, {records:,} records: all known", took.all_s, "s", reference, took.index_s),
    ]
