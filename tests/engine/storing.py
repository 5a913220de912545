"""Hosts with storage below their DRAM, and what these tests do to them."""

import os

from engines import BYTES_PER_TOKEN, CHUNK_TOKENS, Engine
from harness import until
from hosts import Host


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
