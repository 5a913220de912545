"""How much memory does the index take for one chunk?

All of it, shared and private, that the store says it has allocated, divided by the chunks it can hold; and
how much the daemon's own memory grows while it is filled, which would show anything not counted.

Reference of the same run: a Python dict from the same keys to (offset, generation).
"""

import tracemalloc
from typing import Final

from kvtier.bench.daemon import (
    CHUNK_BYTES,
    KeyArray,
    as_list,
    client_of,
    fill,
    open_namespace,
    random_keys,
    serving,
)
from kvtier.bench.report import Budget, Result
from kvtier.bench.scale import Scale

PER_CHUNK: Final = Budget(96.0)


def run(scale: Scale) -> list[Result]:
    """An index filled to nine tenths of what it can hold, without checksums of chunks in memory and with."""
    slots = scale.pick(32_768, 524_288)
    keys = random_keys(slots * 9 // 10, seed=1)
    index_bytes, grown_bytes = _filled(slots, keys)
    with_checksums, _ = _filled(slots, keys, "--dram-checksum", "always")
    reference = _dict_bytes(as_list(keys)) / len(keys)
    name = "Python dict"
    return [
        Result("index, shared and private, a chunk", index_bytes, "bytes", name, reference, PER_CHUNK),
        Result("the same, dram_checksum = always", with_checksums, "bytes", name, reference, PER_CHUNK),
        Result("daemon's own memory, growth a chunk", grown_bytes, "bytes", name, reference),
    ]


def _filled(slots: int, keys: KeyArray, *options: str) -> tuple[float, float]:
    """Bytes of index a slot, and how much the daemon's own memory grew a chunk."""
    dram_bytes = slots * CHUNK_BYTES
    with serving(dram_bytes, "--slots-max", str(slots), *options) as daemon, client_of(daemon) as client:
        namespace = open_namespace(client, "index-memory")
        before_bytes = daemon.memory_bytes()["anon"]
        fill(namespace, keys)
        grown_bytes = daemon.memory_bytes()["anon"] - before_bytes
        counters = daemon.stats().counters
    return counters["index_bytes"] / counters["slots_max"], grown_bytes / len(keys)


def _dict_bytes(keys: list[bytes]) -> int:
    tracemalloc.start()
    try:
        known = {bytes(bytearray(key)): (number, 1) for number, key in enumerate(keys)}
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return held if known else 0
