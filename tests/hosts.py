"""A kvtier daemon as these tests use it: asked what engines hold, waited for, and once in a while lied to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from harness import Daemon, running_daemon, until

ENGINE_SETTLE_S = 120.0  # however busy the machine is
SIGN_BITS = np.uint32(0x8000_0000)


class Engine(Protocol):
    """An engine that has to be stepped to get on."""

    def poke(self) -> None:
        """A few steps."""


class Host(Daemon):
    """A daemon with an arena of its own."""

    def sessions(self) -> int:
        return len(self.stats().sessions)

    def has_namespace(self) -> bool:
        """An engine has opened one; those that an earlier daemon left have no fingerprint before."""
        return any(namespace.fingerprint_json != "{}" for namespace in self.stats().namespaces)

    def chunks(self) -> int:
        """Readable chunks, of all namespaces."""
        return sum(namespace.chunks for namespace in self.stats().namespaces)

    def stored_bytes(self) -> int:
        """Bytes of all chunks committed in this life of the daemon."""
        return sum(namespace.stores * namespace.chunk_bytes for namespace in self.stats().namespaces)

    def hit_chunks(self) -> int:
        """Chunks that were leased for a load in this life of the daemon."""
        return sum(namespace.hits for namespace in self.stats().namespaces)

    def leased(self) -> dict[str, int]:
        """What sessions, dead ones included, still hold; empty when nothing is held."""
        kinds = ("read_leases", "write_leases", "pinned_slots", "reserved_slots")
        sessions = self.stats().sessions
        counts = {kind: sum(getattr(session, kind) for session in sessions) for kind in kinds}
        return {kind: count for kind, count in counts.items() if count}

    def settle(self, *engines: Engine) -> None:
        """Wait until these engines hold nothing: stores committed, leases given back."""
        for engine in engines:
            engine.poke()
        self.wait_for(lambda: not self.leased(), "all leases are back", *engines)

    def wait_for(self, condition: Callable[[], bool], what: str, *engines: Engine) -> None:
        """Wait, and step the engines meanwhile: an engine in process does nothing by itself."""

        def poke() -> None:
            for engine in engines:
                engine.poke()

        until(
            condition,
            f"{what}; leased: {self.leased()}",
            ENGINE_SETTLE_S,
            **({"between": poke} if engines else {}),
        )

    def spoil_every_chunk(self) -> int:
        """Turn the sign of every float of every readable chunk, as any client could. Returns how many."""
        spoiled = 0
        with self.control() as control, self.client() as client:
            for record in control.stats()["namespaces"]:
                namespace = client.namespace(record["fingerprint"], record["chunk_bytes"])
                for chunk in control.list_chunks(namespace.id):
                    lease = namespace.lease_slots([chunk.key])
                    floats = np.frombuffer(namespace.slot_view(lease, 0, writable=True), np.uint32)
                    floats ^= SIGN_BITS
                    namespace.release_slots(lease)
                    spoiled += len(lease)
        return spoiled


@contextmanager
def running_host(dram: str = "256MiB", *options: str, code: str | None = None) -> Iterator[Host]:
    """A started daemon on temporary paths; at the end nothing may be held and no file left."""
    with running_daemon(dram, *options, code=code, kind=Host) as host:
        yield host
