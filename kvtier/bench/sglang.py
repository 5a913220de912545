"""How fast do SGLang's pages go to kvtier and come back, next to its own file backend?

1000 pages of 1 MiB lie in a host pool of SGLang's, in its default layout. They are set, got back and asked
for in batches of 128, by the steps of SGLang's own cache controller, with backends that its own factory made:
kvtier's over zero copy (`interface_v1`) and over flat pages, and `file`. Every set is of new keys; kvtier's
arena is full, so that each chunk evicts one. What comes back is compared once with what was set.

The same over zero copy with a host pool in shared memory (SGLang's `allocator: shm`) says whether it matters
whose memory the pool is (decision 0029).

Reference of the same run, in turns: SGLang's `file` backend with its directory in shared memory, which is the
best it can have, with and without its cache of metadata; and a plain copy of the whole pool by torch.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from kvtier.bench import clock, machine
from kvtier.bench.daemon import serving
from kvtier.bench.report import BenchSkipped, Budget, Result
from kvtier.bench.scale import Scale
from kvtier.bench.sglang_pages import PAGE_BYTES, PAGE_TOKENS, Backend, HostPool

PAGES: Final = 1000
AS_FAST: Final = Budget(1.0, of="ratio", side=">=")
AS_SOON: Final = Budget(1.0, of="ratio")
_FILE: Final = "SGLang's file backend, in memory"
_CACHED: Final = "the same with its metadata cache"
_KVTIER: Final = {
    "backend_name": "kvtier",
    "module_path": "kvtier_connectors.sglang_hicache",
    "class_name": "KvtierHiCache",
    "weights_id": "benchmark",
    "deadline_ms": 5000,  # patient: a busy machine must not end a benchmark
}


def run(scale: Scale) -> list[Result]:
    """All sides in turns. BenchSkipped without SGLang."""
    pages, rounds, asked = scale.pick((20, 2, 3), (PAGES, 9, 20))
    dram_bytes = max(64 << 20, pages * PAGE_BYTES * 5 // 4)
    needed_bytes = dram_bytes + 5 * pages * PAGE_BYTES  # two pools, a copy, the files and a round's garbage
    if machine.free_bytes() < needed_bytes:
        raise BenchSkipped(f"needs {needed_bytes / 2**30:.1f} GiB of memory that is free")
    host, shared = HostPool(pages), HostPool(pages, "shm")
    with ExitStack() as stack:
        daemon = stack.enter_context(serving(dram_bytes))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="kvt-bench-", dir=machine.SHM)))
        kvtier = {**_KVTIER, "address": daemon.address}
        backends = {
            "kvtier": Backend(host, "dynamic", {**kvtier, "interface_v1": 1}),
            "file": Backend(host, "file", {"file_storage_path": str(folder / "plain")}),
            "shared": Backend(shared, "dynamic", {**kvtier, "interface_v1": 1}),
            "flat": Backend(host, "dynamic", {**kvtier, "interface_v1": 0}),
            "cached": Backend(
                host, "file", {"file_storage_path": str(folder / "cached"), "enable_metadata_cache": True}
            ),
        }
        for name in ("kvtier", "shared", "flat"):
            stack.callback(backends[name].storage.close)
        sides = {
            name: _Side(shared if name == "shared" else host, backend, pages, asked, seed)
            for seed, (name, backend) in enumerate(backends.items())
        }
        for side in sides.values():
            side.check()
        measures = {
            (name, what): partial(side.measure, what)
            for name, side in sides.items()
            for what in ("set", "get", "exists")
        }
        copy = host.copy()
        times = clock.in_turns({**measures, ("memory", "copy"): partial(_seconds, copy)}, rounds)
    return _results(clock.medians(times), pages)


class _Side:
    """One backend, with keys that are new at every set."""

    def __init__(self, host: HostPool, backend: Backend, pages: int, asked: int, seed: int) -> None:
        """seed: another one for each side, as two of them share a namespace."""
        self._host, self._backend = host, backend
        self._pages, self._asked = pages, asked
        self._random = np.random.default_rng(seed)
        self._keys: list[str] = []

    def measure(self, what: str) -> float:
        """Seconds of a set, of a get of what was set last, of asking for all of it."""
        if what == "set":
            if not hasattr(self._backend.storage, "counters"):  # kvtier evicts; files stay until removed
                self._backend.storage.clear()
            self._keys = [
                row.tobytes().hex() for row in self._random.integers(0, 256, (self._pages, 32), "u1")
            ]
            return _seconds(partial(self._backend.set, self._keys))
        if what == "get":
            return _seconds(partial(self._backend.get, self._keys))
        if (found := self._backend.exists(self._keys)) != self._pages:
            raise BenchSkipped(f"{found} of {self._pages} pages are there")
        return clock.p50_us(partial(self._backend.exists, self._keys), self._asked) / 1e6

    def check(self) -> None:
        """BenchSkipped unless a get brings back what was set. Also the first, slow round of both."""
        wanted = self._host.digest()
        self.measure("set")
        self._host.forget()
        self.measure("get")
        if self._host.digest() != wanted:
            raise BenchSkipped("what came back is not what was set")


def _seconds(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _results(seconds: dict[tuple[str, str], float], pages: int) -> list[Result]:
    def speed(name: str, what: str) -> float:
        return pages * PAGE_BYTES / seconds[name, what] / 1e9

    of = f"{pages} pages of {PAGE_TOKENS} tokens, {PAGE_BYTES / 2**20:g} MiB"
    file = {what: speed("file", what) for what in ("set", "get")}
    results = [
        Result(f"{what}, {of}", speed("kvtier", what), "GB/s", _FILE, file[what], AS_FAST)
        for what in ("set", "get")
    ]
    results += [
        Result(f"{what}, flat pages", speed("flat", what), "GB/s", _FILE, file[what])
        for what in ("set", "get")
    ]
    results += [
        Result(f"{what}, zero copy", speed("kvtier", what), "GB/s", "torch copy", speed("memory", "copy"))
        for what in ("set", "get")
    ]
    results += [
        Result(
            f"{what}, pool in shared memory",
            speed("shared", what),
            "GB/s",
            "pool in private memory",
            speed("kvtier", what),
        )
        for what in ("set", "get")
    ]
    us = {name: seconds[name, "exists"] * 1e6 for name in ("kvtier", "file", "cached")}
    results += [
        Result(f"exists, {pages} pages", us["kvtier"], "us", reference, us[name], AS_SOON)
        for name, reference in (("file", _FILE), ("cached", _CACHED))
    ]
    return results
