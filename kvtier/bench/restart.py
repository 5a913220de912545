"""A daemon is killed and started again: how long until its chunks are hit?

An arena full of the smallest chunks. From the start of `kvtier serve` to the first lease of an engine that
was attached before and attaches again by itself; then a sample from all over the arena must be there. And the
part of it that takes the chunks over.

Reference of the same run: reading the metadata file once, and nothing else.
"""

import time
from pathlib import Path
from typing import Final

from kvtier.bench.daemon import CHUNK_BYTES, KeyArray, client_of, fill, open_namespace, random_keys, serving
from kvtier.bench.report import BenchSkipped, Budget, Result
from kvtier.bench.scale import Scale
from kvtier.client.client import Client
from kvtier.client.namespace import Namespace
from kvtier.errors import DaemonUnavailable

FIRST_HIT: Final = Budget(2.0)
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.001
_SAMPLE: Final = 1000
_READ_BYTES: Final = 1 << 20


def run(scale: Scale) -> list[Result]:
    """Nine tenths of the slots are in use."""
    slots = scale.pick(32_768, 1_114_112)  # the larger one for a million chunks
    chunks = slots * 9 // 10
    with serving(slots * CHUNK_BYTES, "--slots-max", str(slots)) as daemon:
        keys = random_keys(chunks, seed=3)
        with client_of(daemon) as client:
            fill(open_namespace(client, "restart"), keys)
        with Client.connect(daemon.address, name="bench", managed=True, deadline_ms=5000) as client:
            namespace = open_namespace(client, "restart")
            daemon.kill()
            reference_s = _read_s(daemon.shm_dir / "arena.meta")
            began_s = time.perf_counter()
            daemon.start()
            _first_hit(namespace, keys)
            first_hit_s = time.perf_counter() - began_s
            _check(namespace, keys)
        counters = daemon.stats().counters
    if counters["restart_kept"] != chunks:
        raise BenchSkipped(f"{counters['restart_kept']} of {chunks} chunks were kept")
    size = f"{chunks / 1e6:.1f} M chunks"
    name = "reading the metadata"
    return [
        Result(f"first hit, {size}", first_hit_s, "s", name, reference_s, FIRST_HIT),
        Result(f"taking over {size}", counters["restart_us"] / 1e6, "s", name, reference_s),
    ]


def _read_s(path: Path) -> float:
    began_s = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(_READ_BYTES):
            pass
    return time.perf_counter() - began_s


def _first_hit(namespace: Namespace, keys: KeyArray) -> None:
    deadline_s = time.perf_counter() + _PATIENCE_S
    while time.perf_counter() < deadline_s:
        try:
            lease = namespace.lease_slots(keys[:1])
        except DaemonUnavailable:
            time.sleep(_LOOK_S)
            continue
        if len(lease) == 1:
            namespace.release_slots(lease)
            return
    raise BenchSkipped(f"no hit within {_PATIENCE_S:g} s of the restart")


def _check(namespace: Namespace, keys: KeyArray) -> None:
    step = max(len(keys) // _SAMPLE, 1)
    missing = sum(namespace.lookup_count(keys[i : i + 1]) == 0 for i in range(0, len(keys), step))
    if missing:
        raise BenchSkipped(f"{missing} chunks of a sample are missing after the restart")
