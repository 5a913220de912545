"""How much memory does the index take for one chunk?

All of it, shared and private, that the store says it has allocated, divided by the chunks it can hold; and
how much the daemon's own memory grows while it is filled, which would show anything not counted.

Reference of the same run: a Python dict from the same keys to (offset, generation).
"""

import tracemalloc
from typing import Final

from kvtier.bench.daemon import CHUNK_BYTES, as_list, client_of, fill, open_namespace, random_keys, serving
from kvtier.bench.report import Budget, Result
from kvtier.bench.scale import Scale

PER_CHUNK: Final = Budget(96.0)


def run(scale: Scale) -> list[Result]:
    """An index filled to nine tenths of what it can hold."""
    slots = scale.pick(32_768, 524_288)
    chunks = slots * 9 // 10
    dram_bytes = slots * CHUNK_BYTES
    with serving(dram_bytes, "--slots-max", str(slots)) as daemon, client_of(daemon) as client:
        namespace = open_namespace(client, "index-memory")
        keys = random_keys(chunks, seed=1)
        before_bytes = daemon.memory_bytes()["anon"]
        fill(namespace, keys)
        grown_bytes = daemon.memory_bytes()["anon"] - before_bytes
        counters = daemon.stats().counters
    reference = _dict_bytes(as_list(keys)) / chunks
    index_bytes = counters["index_bytes"] / counters["slots_max"]
    name = "Python dict"
    return [
        Result("index, shared and private, a chunk", index_bytes, "bytes", name, reference, PER_CHUNK),
        Result("daemon's own memory, growth a chunk", grown_bytes / chunks, "bytes", name, reference),
    ]


def _dict_bytes(keys: list[bytes]) -> int:
    tracemalloc.start()
    try:
        known = {bytes(bytearray(key)): (number, 1) for number, key in enumerate(keys)}
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return held if known else 0
