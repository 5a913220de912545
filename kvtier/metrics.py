"""The only list of metrics: what is counted, under which name Prometheus sees it, and what it means.

A gauge `x` is exported as `kvtier_x`, a counter `x` as `kvtier_x_total`; `unit` is the last word of a name
that has one. `kvtier stats --json` carries the same names without the prefix.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX: Final = "kvtier_"


@dataclass(frozen=True, slots=True)
class Spec:
    """One number of the store."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str


def _gauge(name: str, text: str) -> Spec:
    return Spec(name, "gauge", text)


def _counter(name: str, text: str) -> Spec:
    return Spec(name, "counter", text)


STORE: Final = (
    _counter("hits", "Chunks that were leased to read."),
    _counter("misses", "Chunks that a lease asked for and did not get."),
    _counter("stores", "Chunks that became readable."),
    _counter("stored_bytes", "Bytes of the chunks that became readable."),
    _counter("aborts", "Chunks that were reserved and not committed."),
    _counter("cleared", "Chunks made unreadable by clearing their namespace."),
    _counter("evictions", "Chunks evicted."),
    _counter("evicted_bytes", "Bytes of the chunks evicted."),
    _counter("refusals", "Chunks that got no slot: everything was pinned or reserved."),
    _counter("index_refusals", "Part of the refusals: the index had no cell left."),
    _counter("rebalances", "Slabs given to another slot size."),
    _counter("quarantines", "Slots set aside because their writer left without proof that it had stopped."),
    _counter("expired_leases", "Leases taken back because their time was over."),
    _counter("storage_hits", "Part of the hits: chunks that had to come from storage."),
    _counter("promotes", "Chunks that came up from storage."),
    _counter("promote_losses", "Promotes that failed, or whose namespace was cleared meanwhile."),
    _counter("promote_refusals", "Chunks on storage that were not promoted: no space, or too many waiting."),
    _gauge("data_bytes", "Size of the arena."),
    _gauge("populated_bytes", "Part of the arena whose memory is there already."),
    _gauge("chunk_bytes", "Bytes in readable chunks."),
    _gauge("slab_bytes", "Size of one slab."),
    _gauge("slabs", "Slabs of the arena."),
    _gauge("free_slabs", "Slabs not given to any slot size."),
    _gauge("slots_max", "Most chunks the index can hold."),
    _gauge("committed_slots", "Slots with a readable chunk."),
    _gauge("reserved_slots", "Slots being written."),
    _gauge("promoting_slots", "Slots whose chunk is on its way up from storage."),
    _gauge("quarantined_slots", "Slots set aside until their writer is known to be gone."),
    _gauge("stale_slots", "Slots of cleared namespaces, not yet made usable."),
    _gauge("pinned_slots", "Slots held by read leases or demotes."),
    _gauge("read_leases", "Read leases that are out."),
    _gauge("write_leases", "Write leases that are out."),
    _gauge("sessions", "Sessions the store knows."),
    _gauge("namespaces", "Namespaces of this boot."),
    _gauge("index_bytes", "Memory of the index, shared and private."),
    _gauge("draining", "1 when no new leases are granted."),
    _gauge("ring_sessions", "Sessions with a ring."),
    _counter("ring_requests", "Requests served from rings."),
    _counter("ring_posted_failures", "Posted requests that failed; nobody waited for their answer."),
    _counter("ring_sleeps", "Times the ring thread went to sleep."),
    _counter("ring_closed_for_lies", "Rings closed because what they said could not be true."),
    _counter("ring_busy_ns", "Nanoseconds the ring thread spent on requests."),
)
"""Numbers of the native store, in the order of its statistics."""

POPULATION_FAILED: Final = "population_failed"
DAEMON: Final = (
    _gauge(POPULATION_FAILED, "1 when the rest of the arena could not be populated; what there is serves."),
)
"""Numbers that the daemon adds."""

ALL: Final = STORE + DAEMON


class StatsCollector(Collector):
    """Reads the numbers once a scrape."""

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        """`read` is called on the scraping thread."""
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """One family a number."""
        values = self._read()
        for spec in ALL:
            family = GaugeMetricFamily if spec.kind == "gauge" else CounterMetricFamily
            yield family(PREFIX + spec.name, spec.help, value=values[spec.name])
