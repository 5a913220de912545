"""The scheduler's counters between two of vLLM's statistics intervals."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from kvtier_connectors.common.guard import fault_count
from kvtier_connectors.vllm_connector import counters
from kvtier_connectors.vllm_connector.books import Outcome
from kvtier_connectors.vllm_connector.lookup import RequestView
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats


class Tally:
    """Counts since the last `take`."""

    def __init__(self, attached: Callable[[], bool]) -> None:
        self._attached = attached
        self._told: bool | None = None
        self._faults_told = 0
        self._counts: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def looked_up(self, view: RequestView | None) -> None:
        """A request's view is done with."""
        if view is not None:
            self._counts[counters.LOOKUP_CHUNKS, ()] += view.chunks_asked
            self._counts[counters.HIT_CHUNKS, ()] += view.chunks_hit

    def skipped(self, reason: str) -> None:
        """A chunk was not granted a slot."""
        self._counts[counters.SKIPPED_CHUNKS, (reason,)] += 1

    def settled(self, outcome: Outcome) -> None:
        """Jobs ended."""
        self._counts[counters.LOADED_CHUNKS, ()] += outcome.loaded_chunks
        for tier, bytes_loaded in outcome.loaded_bytes.items():
            self._counts[counters.LOADED_BYTES, (tier,)] += bytes_loaded
        self._counts[counters.STORED_CHUNKS, ()] += outcome.stored_chunks
        self._counts[counters.FAILED_LOADS, ()] += outcome.failed_loads
        self._counts[counters.FAILED_STORES, ()] += outcome.failed_stores

    def take(self) -> Any:
        """vLLM's statistics payload of what happened since, or None when nothing did."""
        faults = fault_count()
        self._counts[counters.FAULTS, ()] += faults - self._faults_told
        self._faults_told = faults
        attached = self._attached()
        counts, self._counts = +self._counts, Counter()
        if not counts and attached == self._told:
            return None
        self._told = attached
        stats = OffloadingConnectorStats()
        stats.set_gauge(counters.ATTACHED, int(attached))
        for (name, labels), value in counts.items():
            stats.increase_counter(name, value, labels)
        return stats
