"""From which tier the chunks of a request's load come: told to vLLM key by key, and counted in bytes.

A chunk counts for storage when it was still on its way when the load began. Those behind it count with it: a
load goes in order, so they are loaded no earlier.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from kvtier_connectors.vllm_connector.layout import GroupPlan
from kvtier_connectors.vllm_connector.lookup import group_suffix

from kvtier import SlotLease

HOST, STORAGE = "host", "storage"


class Arena(Protocol):
    """The part of a namespace that knows what has arrived."""

    def wait_slots(self, lease: SlotLease, timeout_s: float) -> int:
        """Leading chunks of the lease that are in DRAM by then."""


class Load:
    """What one load takes from where."""

    def __init__(self) -> None:
        self.tier_bytes: Counter[str] = Counter()
        self.on_storage: set[bytes] = set()

    def add(self, hashes: Sequence[bytes], lease: SlotLease, arena: Arena, plan: GroupPlan) -> None:
        """One group's part, right after its lease was granted."""
        ready = arena.wait_slots(lease, 0.0) if len(lease) else 0
        self.tier_bytes[HOST] += ready * plan.chunk_bytes
        if ready < len(lease):
            self.tier_bytes[STORAGE] += (len(lease) - ready) * plan.chunk_bytes
            suffix = group_suffix(plan)
            self.on_storage.update(key + suffix for key in hashes[ready : len(lease)])


class Sources:
    """The last load of every live request that took something from storage."""

    def __init__(self) -> None:
        self._loads: dict[str, Load] = {}

    def begin(self, request_id: str) -> Load:
        """A load is being planned for this request."""
        load = self._loads[request_id] = Load()
        return load

    def on_storage(self, request_id: str, key: bytes) -> bool:
        """Whether this key's chunk was on storage when its load began."""
        load = self._loads.get(request_id)
        return load is not None and key in load.on_storage

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._loads.pop(request_id, None)
