"""What does a checksum of every chunk in memory cost?

With `dram_checksum = always`: chunks of 2 MiB are committed, all at once, and the daemon's thread reads them
within a second or so. How fast it reads, by its own time, and how long after the first commit the last
checksum is made; the same after the daemon was killed, when each chunk is verified before it is served. Then
what an engine feels of it: reserve and commit of 256 chunks of 4 KiB, the smallest, while the thread works.

References of the same run: memcpy of as many bytes, in chunks as large; the same round trips with
`dram_checksum = off`.
"""

import statistics
import time
from pathlib import Path
from typing import Final

import numpy as np

from kvtier.bench.daemon import client_of, fill, open_namespace, random_keys, serving
from kvtier.bench.report import BenchSkipped, Result
from kvtier.bench.scale import Scale
from kvtier.demo.daemon import LocalDaemon

_CHUNK_BYTES: Final = 2 << 20
_BATCH: Final = 256
_PATIENCE_S: Final = 120.0
_THREAD: Final = "kvtier-check"


def run(scale: Scale) -> list[Result]:
    """An arena full of large chunks, then round trips with small ones."""
    chunks = scale.pick(128, 1024)
    gb = chunks * _CHUNK_BYTES / 1e9
    copy_s, copy_cpu_s = _memcpy(chunks)
    with serving((chunks + 64) * _CHUNK_BYTES, "--dram-checksum", "always") as daemon:
        keys = random_keys(chunks, seed=5)
        with client_of(daemon) as client:
            namespace = open_namespace(client, "checksum", _CHUNK_BYTES)
            began_s = time.perf_counter()
            fill(namespace, keys)
            _await(daemon, "checksums", chunks)
            made_s = time.perf_counter() - began_s
        made_cpu_s = _thread_s(daemon.process.pid)
        daemon.kill()
        began_s = time.perf_counter()
        daemon.start()
        ready_s = time.perf_counter() - began_s
        _await(daemon, "checksum_passes", chunks)
        verified_s = time.perf_counter() - began_s
        verified_cpu_s = _thread_s(daemon.process.pid)
    rounds = scale.pick(40, 200)
    with_them, without = (_round_trip_us(policy, rounds) for policy in ("always", "off"))
    return [
        Result("read by the thread", gb / made_cpu_s, "GB/s", "memcpy", gb / copy_cpu_s),
        Result(f"first commit to last checksum of {gb:.1f} GB", made_s, "s", "memcpy", copy_s),
        Result("making them, the thread's time", made_cpu_s / gb, "s/GB", "memcpy", copy_cpu_s / gb),
        Result("verifying them, the thread's time", verified_cpu_s / gb, "s/GB", "memcpy", copy_cpu_s / gb),
        Result(f"restart to all of {gb:.1f} GB verified", verified_s, "s", "to ready", ready_s),
        Result(f"reserve {_BATCH}, p50", with_them[0], "us", "off", without[0]),
        Result(f"commit {_BATCH}, answered, p50", with_them[1], "us", "off", without[1]),
    ]


def _memcpy(chunks: int) -> tuple[float, float]:
    """Wall and thread seconds to copy so many chunks, from memory that is not in a cache."""
    source = np.ones(min(chunks, 128) * _CHUNK_BYTES, np.uint8).reshape(-1, _CHUNK_BYTES)
    target = np.empty_like(source)
    target[:] = 0
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    for chunk in range(chunks):
        target[chunk % len(target)] = source[chunk % len(source)]
    return time.perf_counter() - wall_s, time.thread_time() - cpu_s


def _await(daemon: LocalDaemon, counter: str, count: int) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while daemon.stats().counters[counter] < count:
        if time.monotonic() > deadline_s:
            raise BenchSkipped(f"{counter} did not reach {count} in {_PATIENCE_S:g} s")
        time.sleep(0.002)


def _thread_s(pid: int) -> float:
    """Seconds the daemon's thread has run so far."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == _THREAD:
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    raise BenchSkipped(f"the daemon has no thread {_THREAD}")


def _round_trip_us(policy: str, rounds: int) -> tuple[float, float]:
    """Medians of a reserve and of a commit."""
    reserves, commits = [], []
    keys = random_keys(rounds * _BATCH, seed=6).reshape(rounds, _BATCH, -1)
    with (
        serving(256 << 20, "--slots-max", "65536", "--dram-checksum", policy) as daemon,
        client_of(daemon) as client,
    ):
        namespace = open_namespace(client, "checksum")
        for batch in keys:
            began_s = time.perf_counter()
            grant = namespace.reserve_slots(batch)
            reserved_s = time.perf_counter()
            namespace.commit_slots(grant, wait=True)
            reserves.append(reserved_s - began_s)
            commits.append(time.perf_counter() - reserved_s)
    return statistics.median(reserves) * 1e6, statistics.median(commits) * 1e6
