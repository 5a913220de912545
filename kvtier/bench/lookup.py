"""How long does it take to find out how much of a prompt is cached?

A prefix of 1000 chunks, all of them present, asked from Python as an adapter asks, while another process
changes the index about 100,000 times a second (it reserves and aborts chunks). Each lookup takes another
prefix out of many, drawn at random from the whole index, so that caches do not flatter it; the keys
themselves are read once before the clock starts, since an engine has just computed them.

References of the same run: a loop over a Python dict that holds the same keys, and one round trip over a
Unix socket to another process with the same 1000 keys as its message (without any work there).
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np

from kvtier.bench import clock
from kvtier.bench.daemon import (
    CHUNK_BYTES,
    KEY_BYTES,
    as_list,
    client_of,
    fill,
    open_namespace,
    random_keys,
    serving,
)
from kvtier.bench.index_writer import writing
from kvtier.bench.report import BenchSkipped, Budget, Result
from kvtier.bench.scale import Scale
from kvtier.bench.socket_peer import SocketPeer
from kvtier.client.namespace import Namespace

PREFIX_CHUNKS: Final = 1000
PREFIXES: Final = 128
BUDGETS_US: Final = {1_000_000: 30.0, 10_000_000: 60.0}


def run(scale: Scale) -> list[Result]:
    """The sizes of this scale, smallest first."""
    results = []
    for chunks in scale.pick((20_000,), (1_000_000,), (1_000_000, 10_000_000)):
        results += _run(chunks, rounds=scale.pick(3, 21), count=scale.pick(20, 200))
    return results


def _run(chunks: int, *, rounds: int, count: int) -> list[Result]:
    # A quarter more than is needed: the writer's chunks, and slabs that are not full.
    dram_bytes = -(-chunks * CHUNK_BYTES * 5 // 4 // (64 << 20)) * (64 << 20)
    with ExitStack() as stack:
        peer = stack.enter_context(SocketPeer(PREFIX_CHUNKS * KEY_BYTES))
        daemon = stack.enter_context(serving(dram_bytes, "--slots-max", str(dram_bytes // CHUNK_BYTES)))
        client = stack.enter_context(client_of(daemon))
        namespace = open_namespace(client, "lookup")
        keys = random_keys(chunks, seed=1)
        fill(namespace, keys)
        drawn = np.random.default_rng(2).integers(0, chunks, (PREFIXES, PREFIX_CHUNKS))
        arrays = [np.ascontiguousarray(keys[row]) for row in drawn]
        lists = [as_list(array) for array in arrays]
        _check(namespace, lists)
        known = dict.fromkeys(as_list(keys))
        askers = {
            "list": _Asker(lists, namespace.lookup_count),
            "array": _Asker(arrays, namespace.lookup_count),
            "dict": _Asker(lists, partial(_probe, known)),
        }
        with writing(daemon.address) as writer:
            before = writer.updates()
            times = clock.in_turns(
                {name: partial(asker.p50_us, count) for name, asker in askers.items()}
                | {"socket": partial(clock.p50_us, peer.round_trip, count)},
                rounds,
            )
            updates_per_s = writer.rate_since(before)
        _check(namespace, lists)
    size = f"{chunks / 1e6:g} M chunks"
    us = clock.medians(times)
    budget = BUDGETS_US.get(chunks)
    limit = None if budget is None else Budget(budget)
    what = f"{PREFIX_CHUNKS} keys, {size}"
    return [
        Result(f"{what}, list of bytes", us["list"], "us", "dict loop", us["dict"], limit),
        Result(f"{what}, list of bytes", us["list"], "us", "Unix socket round trip", us["socket"]),
        Result(f"{what}, array", us["array"], "us", "dict loop", us["dict"], limit),
        Result(f"{what}, worst round", max(times["list"]), "us", "dict loop", clock.median(times["dict"])),
        Result(f"writer beside, {size}", updates_per_s / 1e3, "k updates/s", "asked for", 100.0),
    ]


class _Asker:
    """Asks for one prefix after the other; its keys are in the cache when the clock starts."""

    def __init__(self, prefixes: Sequence[Any], ask: Callable[[Any], int]) -> None:
        self._next = itertools.cycle(prefixes).__next__
        self._ask = ask

    def p50_us(self, count: int) -> float:
        self._prefix: Any = None
        return clock.p50_us(lambda: self._ask(self._prefix), count, prepare=self._prepare)

    def _prepare(self) -> None:
        self._prefix = self._next()
        b"".join(bytes(key) for key in self._prefix)


def _probe(known: dict[bytes, None], keys: list[bytes]) -> int:
    count = 0
    for key in keys:
        if key not in known:
            break
        count += 1
    return count


def _check(namespace: Namespace, prefixes: list[list[bytes]]) -> None:
    for prefix in prefixes:
        if (found := namespace.lookup_count(prefix)) != len(prefix):
            raise BenchSkipped(f"only {found} of {len(prefix)} chunks are there; the index has lost some")
