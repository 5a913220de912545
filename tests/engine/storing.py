"""Hosts with storage below their DRAM, and what these tests do to them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engines import BYTES_PER_TOKEN, CHUNK_TOKENS, Engine
from harness import until
from hosts import Host, running_host

import tpu_sync_native as native


@contextmanager
def storing_host(root: Path, dram: str = "256MiB") -> Iterator[Host]:
    with running_host(dram, "--storage", str(root), "--storage-poll", "200ms") as host:
        yield host


def on_storage(host: Host) -> None:
    """Until every chunk in DRAM is on storage too."""
    stored = host.stored_bytes() // (CHUNK_TOKENS * BYTES_PER_TOKEN["dense"])
    until(lambda: host.counters()["storage_demoted_chunks"] >= stored, f"{stored} chunks are demoted")


def restart_empty(host: Host, chunks: int, *engines: Engine, workers: int = 1) -> None:
    """Stop and start it: its DRAM is empty then, and the engines attach by themselves."""
    assert host.stop() == 0
    os.sync()  # reads behind a build that is still written back may be over their deadline
    host.start(fresh=True)

    def ready() -> bool:
        return (
            host.sessions() == (1 + workers) * len(engines)
            and host.has_namespace()
            and all(engine.call("metrics")["kvtier_attached"] == 1 for engine in engines)
            and host.counters()["storage_records"] >= chunks
        )

    host.wait_for(ready, "engines and storage are back", *engines)
    assert host.chunks() == 0 or not engines
    for engine in engines:
        engine.forget()


def read_bytes(engine: Engine, tier: str) -> int:
    return int(engine.call("tier_bytes").get(tier, 0))


def spoil_segments(root: Path, first: int, last: int | None = None) -> int:
    """Turn a bit in the payload of the records from `first` up to `last`, of every segment. How many."""
    spoiled = 0
    for segment in root.rglob("seg-*.kvs"):
        for record in native.scan_segment(str(segment), False)["records"][first:last]:
            with segment.open("r+b") as file:
                file.seek(record["offset"] + record["stored_bytes"] // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 1]))
            spoiled += 1
    return spoiled
