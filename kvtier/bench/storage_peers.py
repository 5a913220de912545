"""What storage is measured against: the file system itself, read and written in one go, and a file a chunk.

fio is used where it is installed. Elsewhere the same is done here: one thread, one file, O_DIRECT, preadv and
pwritev of the same size one after the other, as fio's psync engine does it.
"""

import contextlib
import functools
import json
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal

from kvtier.bench.report import BenchSkipped

SEQUENTIAL_BYTES: Final = 2 << 20
_DEPTH: Final = 8
_THREADS: Final = 4
_FIO_S: Final = 300.0
Direction = Literal["write", "read"]


class Sequential:
    """One large file, O_DIRECT, as fast as it goes: fio one at a time and, where the kernel lets it, with
    several in flight. Each way is measured by itself; the fastest is the reference."""

    def __init__(self, directory: Path, total_bytes: int) -> None:
        self._path = directory / "sequential"
        self._total_bytes = total_bytes
        self._fio = shutil.which("fio")
        self._ways = [("psync", 1), ("io_uring", _DEPTH)] if self._fio else [("own", 1)]
        if self._fio:  # not every kernel or container allows every engine
            self._ways = [way for way in self._ways if self._run_fio("write", *way, SEQUENTIAL_BYTES, 0)]
            if not self._ways:
                raise BenchSkipped("fio is installed and does not run here")

    @property
    def name(self) -> str:
        """As a table shows it."""
        return "fio O_DIRECT sequential" if self._fio else "O_DIRECT sequential, as fio psync (no fio here)"

    def measures(self, direction: Direction, sync_bytes: int = 0) -> dict[str, Callable[[], float]]:
        """Bytes per second by way, for each a call that measures it.

        A write fills a new file, as segments are: to write over an old one is faster, for it has its blocks
        already. It ends with fsync; with `sync_bytes` there is also one after every so many. A read reads
        what was written last.
        """
        return {
            f"{direction} {engine} {depth} synced {sync_bytes}": functools.partial(
                self._bytes_per_s, direction, engine, depth, sync_bytes
            )
            for engine, depth in self._ways
        }

    def _bytes_per_s(self, direction: Direction, engine: str, depth: int, sync_bytes: int) -> float:
        if direction == "write":
            self._path.unlink(missing_ok=True)
        if not self._fio:
            return self._own(direction, sync_bytes)
        rate = self._run_fio(direction, engine, depth, self._total_bytes, sync_bytes)
        if rate is None:
            raise BenchSkipped(f"fio with {engine} ran before and does not now")
        return rate

    def _run_fio(
        self, direction: Direction, engine: str, depth: int, total_bytes: int, sync_bytes: int
    ) -> float | None:
        command = [
            *(self._fio or "fio", "--name=kvtier", f"--filename={self._path}", f"--rw={direction}"),
            *(f"--bs={SEQUENTIAL_BYTES}", f"--size={total_bytes}", "--direct=1", "--thread"),
            *(f"--ioengine={engine}", f"--iodepth={depth}", f"--fsync={sync_bytes // SEQUENTIAL_BYTES}"),
            *("--end_fsync=1", "--output-format=json"),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_FIO_S, check=True)
            job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
            moved_bytes, took_ms = int(job[direction]["io_bytes"]), float(job["job_runtime"])
        except (subprocess.SubprocessError, ValueError):
            return None
        return moved_bytes / (max(took_ms, 1) / 1e3)

    def _own(self, direction: Direction, sync_bytes: int) -> float:
        flags = os.O_RDONLY if direction == "read" else os.O_WRONLY | os.O_CREAT
        with _aligned(SEQUENTIAL_BYTES) as buffer:
            began_s = time.perf_counter()
            fd = os.open(self._path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
            try:
                for offset in range(0, self._total_bytes, SEQUENTIAL_BYTES):
                    move = (
                        os.preadv(fd, [buffer], offset)
                        if direction == "read"
                        else os.pwritev(fd, [buffer], offset)
                    )
                    _whole(move, SEQUENTIAL_BYTES)
                    if sync_bytes and (offset + SEQUENTIAL_BYTES) % sync_bytes == 0:
                        os.fsync(fd)
                if direction == "write":
                    os.fsync(fd)
            finally:
                os.close(fd)
            return self._total_bytes / (time.perf_counter() - began_s)


class FilePerChunk:
    """Every chunk in a file of its own, O_DIRECT, written under another name and renamed, by several threads:
    what engines' own file tiers do. No fsync, no checksum, as there."""

    def __init__(self, directory: Path, chunk_bytes: int, chunks: int) -> None:
        self._directory = directory / "files"
        self._chunk_bytes = chunk_bytes
        self._chunks = chunks

    def write_s(self) -> float:
        """Seconds to write all of them anew."""
        shutil.rmtree(self._directory, ignore_errors=True)
        for prefix in range(256):
            (self._directory / f"{prefix:02x}").mkdir(parents=True)
        return self._all(self._write)

    def read_s(self) -> float:
        """Seconds to read all of them."""
        return self._all(self._read)

    def remove_s(self) -> float:
        """Seconds to unlink all of them."""
        began_s = time.perf_counter()
        for number in range(self._chunks):
            self._path(number).unlink()
        return time.perf_counter() - began_s

    def _path(self, number: int) -> Path:
        return self._directory / f"{number & 0xFF:02x}" / f"{number:016x}.bin"

    def _all(self, one: Callable[[mmap.mmap, int], None]) -> float:
        def share(first: int) -> None:
            with _aligned(self._chunk_bytes) as buffer:
                for number in range(first, self._chunks, _THREADS):
                    one(buffer, number)

        with ThreadPoolExecutor(_THREADS) as pool:
            began_s = time.perf_counter()
            list(pool.map(share, range(_THREADS)))
            return time.perf_counter() - began_s

    def _write(self, buffer: mmap.mmap, number: int) -> None:
        path = self._path(number)
        temporary = path.with_suffix(".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        try:
            _whole(os.pwritev(fd, [buffer], 0), self._chunk_bytes)
        finally:
            os.close(fd)
        temporary.rename(path)

    def _read(self, buffer: mmap.mmap, number: int) -> None:
        fd = os.open(self._path(number), os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            _whole(os.preadv(fd, [buffer], 0), self._chunk_bytes)
        finally:
            os.close(fd)


def check_direct(directory: Path) -> None:
    """BenchSkipped where files cannot be opened with O_DIRECT: there is nothing to compare with."""
    path = directory / "direct"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError:
        raise BenchSkipped(
            f"needs O_DIRECT, which {directory} has not; TMPDIR may name another directory"
        ) from None
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _aligned(size_bytes: int) -> Iterator[mmap.mmap]:
    """Page-aligned memory with bytes that no disk takes for zeros."""
    with mmap.mmap(-1, size_bytes) as buffer:
        buffer[:] = os.urandom(min(size_bytes, 1 << 16)) * (size_bytes // min(size_bytes, 1 << 16))
        yield buffer


def _whole(moved: int, wanted: int) -> None:
    if moved != wanted:
        raise BenchSkipped(f"{moved} of {wanted} bytes were moved by one call")
