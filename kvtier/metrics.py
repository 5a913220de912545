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
    _counter("rebalance_searches", "Times that all slabs were looked at for one to give to another size."),
    _counter("quarantines", "Slots set aside because their writer left without proof that it had stopped."),
    _counter("expired_leases", "Leases taken back because their time was over."),
    _counter("storage_hits", "Part of the hits: chunks that had to come from storage."),
    _counter("promotes", "Chunks that came up from storage."),
    _counter("promote_losses", "Promotes that failed, or whose namespace was cleared meanwhile."),
    _counter("promote_refusals", "Chunks on storage that were not promoted: no space, or too many waiting."),
    _counter("checksums", "Checksums made of chunks in memory."),
    _counter("checksum_passes", "Chunks of an earlier daemon whose checksum was found to hold."),
    _counter("checksum_failures", "Chunks of an earlier daemon that were dropped: it did not hold."),
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
    _gauge("late_slots", "Part of those: a read of storage of an earlier daemon may still land in them."),
    _gauge("unverified_slots", "Chunks of an earlier daemon, not served before their checksum is verified."),
    _gauge("stale_slots", "Slots of cleared namespaces, not yet made usable."),
    _gauge("withheld_slots", "Chunks of an earlier daemon, not served before storage says what they are of."),
    _gauge("pinned_slots", "Slots held by read leases or demotes."),
    _gauge("read_leases", "Read leases that are out."),
    _gauge("write_leases", "Write leases that are out."),
    _gauge("sessions", "Sessions the store knows."),
    _gauge("namespaces", "Namespaces of this boot."),
    _gauge("index_bytes", "Memory of the index, shared and private."),
    _gauge("draining", "1 when no new leases are granted."),
    _gauge("restarts", "Daemons that took this arena over from an earlier one."),
    _gauge("restart_kept", "Chunks of an earlier daemon that are served again."),
    _gauge("restart_quarantined", "Slots of an earlier daemon that a process may still have been writing."),
    _gauge("restart_late", "Slots of an earlier daemon that a read of storage was to fill."),
    _gauge("restart_unfinished", "Chunks of an earlier daemon that were not there yet, or no more."),
    _gauge("restart_cleared", "Chunks of an earlier daemon whose namespace had been cleared."),
    _gauge(
        "restart_damaged", "Chunks of an earlier daemon that were not kept: their records were not sound."
    ),
    _gauge("restart_us", "How long taking the arena over took."),
    _gauge("ring_sessions", "Sessions with a ring."),
    _counter("ring_requests", "Requests served from rings."),
    _counter("ring_posted_failures", "Posted requests that failed; nobody waited for their answer."),
    _counter("ring_sleeps", "Times the ring thread went to sleep."),
    _counter("ring_closed_for_lies", "Rings closed because what they said could not be true."),
    _counter("ring_busy_ns", "Nanoseconds the ring thread spent on requests."),
    _counter("ring_room_ns", "Nanoseconds it spent on free slots for the next reserve, between requests."),
)
"""Numbers of the native store, in the order of its statistics."""

POPULATION_FAILED: Final = "population_failed"
DAEMON: Final = (
    _gauge(POPULATION_FAILED, "1 when the rest of the arena could not be populated; what there is serves."),
)
"""Numbers that the daemon adds."""

STORAGE: Final = (
    _counter("storage_demoted_chunks", "Chunks written to storage."),
    _counter("storage_demoted_bytes", "Bytes of the chunks written to storage."),
    _counter("storage_demote_ns", "Nanoseconds spent in writing them."),
    _counter("storage_promoted_chunks", "Chunks read from storage and verified."),
    _counter("storage_promoted_bytes", "Bytes of the chunks read from storage."),
    _counter("storage_promote_ns", "Nanoseconds spent in reading them, summed over threads."),
    _counter("storage_dropped_queue", "Demotes dropped: the queue was full, storage is slower than stores."),
    _counter("storage_dropped_evicted", "Demotes dropped: evicted or cleared before their turn."),
    _counter("storage_dropped_present", "Demotes not needed: some host had written the chunk already."),
    _counter("storage_dropped_full", "Demotes dropped: no space, or above the quota."),
    _counter("storage_dropped_down", "Demotes dropped: storage was down or hung."),
    _counter("storage_dropped_error", "Demotes dropped: the write failed."),
    _counter("storage_failed_missing", "Promotes that failed: the segment is gone. A miss."),
    _counter("storage_failed_corrupt", "Promotes that failed: the record does not verify. A miss."),
    _counter("storage_failed_io", "Promotes that failed: the read failed. A miss."),
    _counter("storage_failed_deadline", "Promotes that failed: not done in time. A miss."),
    _counter("storage_failed_down", "Promotes that failed: storage was down. A miss."),
    _counter("storage_sealed_segments", "Segments closed."),
    _counter("storage_adopted_segments", "Segments taken over from dead hosts."),
    _counter("storage_deleted_segments", "Segments deleted to make space, or of a cleared namespace."),
    _counter("storage_deleted_bytes", "Bytes of the segments deleted."),
    _counter("storage_copied_forward_bytes", "Bytes of hot chunks written anew before their segment went."),
    _counter("storage_temporaries_removed", "Left-over temporary files removed."),
    _counter("storage_indexes_refused", "Index files that did not verify."),
    _counter("storage_times_adopted", "Times another host took this one for dead."),
    _counter("storage_breaker_openings", "Times storage was taken for down."),
    _counter("storage_catalog_refusals", "Records that found no room in the catalog: nobody finds them."),
    _gauge("storage_write_amplification_permille", "Bytes written for every thousand that engines stored."),
    _gauge("storage_serving", "1 when lookups count what lies on storage."),
    _gauge("storage_admitting", "1 when demotes are taken."),
    _gauge("storage_stuck_threads", "Threads that hang in the file system."),
    _gauge("storage_records", "Chunks of all hosts that can be found on storage."),
    _gauge("storage_records_max", "Most chunks the catalog can hold."),
    _gauge("storage_catalog_bytes", "Memory of the catalog."),
    _gauge("storage_segment_bytes", "Size at which a segment is closed."),
    _gauge("storage_quota_bytes", "Most bytes of all hosts together; 0: no limit."),
    _gauge("storage_demote_queue_bytes", "Bytes that wait to be written."),
    _gauge("storage_promoting_chunks", "Chunks that wait to be read, or are being read."),
    _gauge("storage_namespaces_ready", "Namespaces that storage serves."),
    _gauge("storage_namespaces_apart", "Of these, shared with fewer hosts: another one has cleared it."),
    _gauge("storage_namespaces_opening", "Namespaces whose directory could not be made or read yet."),
    _gauge("storage_namespaces_refused", "Namespaces refused: storage holds another fingerprint."),
    _gauge("storage_bytes", "Bytes of all hosts, in the namespaces open here."),
    _gauge("storage_hosts", "Hosts alive on the root, in the namespace that has most."),
    _gauge("storage_segments", "Segments known here."),
    _gauge("storage_own_segments", "Segments of this host."),
    _gauge("storage_own_bytes", "Bytes of this host's segments."),
)
"""Numbers of the storage tier; there are none without one."""

ALL: Final = STORE + DAEMON + STORAGE


class StatsCollector(Collector):
    """Reads the numbers once a scrape."""

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        """`read` is called on the scraping thread."""
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """One family a number."""
        values = self._read()
        for spec in ALL:
            if spec in STORAGE and spec.name not in values:
                continue
            family = GaugeMetricFamily if spec.kind == "gauge" else CounterMetricFamily
            yield family(PREFIX + spec.name, spec.help, value=values[spec.name])
