"""What one request's keys find in the shared index, remembered for one question of the scheduler.

vLLM's framework asks key by key and many times over; the index answers for a whole prefix at once. A view is
made anew for each `get_num_new_matched_tokens`, so an answer is never older than one scheduling step.
"""

from collections.abc import Sequence
from typing import Protocol

from kvtier_connectors.vllm_connector.layout import GroupPlan

PROBE_CHUNKS = 64  # chunks asked at once when a window is searched from its end


class Index(Protocol):
    """The part of a namespace that answers lookups."""

    def lookup_count(self, keys: Sequence[bytes]) -> int:
        """Leading keys that are readable; no IPC, 0 when there is no daemon."""


class RequestView:
    """Answers of one request over all its KV groups. Not thread-safe."""

    __slots__ = ("_groups", "chunks_asked", "chunks_hit")

    def __init__(
        self,
        plans: Sequence[GroupPlan],
        indexes: Sequence[Index],
        block_hashes: Sequence[bytes],
        computed_tokens: int,
    ) -> None:
        """block_hashes: one per `tokens_per_hash` tokens; computed_tokens: what the engine holds itself."""
        self.chunks_asked = 0
        self.chunks_hit = 0
        self._groups: dict[bytes, _Prefix | _Window] = {}
        for plan, index in zip(plans, indexes, strict=True):
            kind = _Window if plan.windowed else _Prefix
            first = computed_tokens // plan.tokens_per_chunk
            self._groups[group_suffix(plan)] = kind(self, index, plan, block_hashes, first)

    def present(self, offload_key: bytes) -> bool:
        """Whether the chunk of this key (block hash and four bytes of group) can be read now."""
        group = self._groups.get(offload_key[-4:])
        return group is not None and group.present(offload_key[:-4])


def group_suffix(plan: GroupPlan) -> bytes:
    """The end of every offload key of this group."""
    return plan.group_id.to_bytes(4, "big")


def chunk_keys(plan: GroupPlan, block_hashes: Sequence[bytes], first: int = 0) -> list[bytes]:
    """Keys of a request's whole chunks from chunk `first` on: the hash of each chunk's last block."""
    step = plan.hashes_per_chunk
    return list(block_hashes[(first + 1) * step - 1 :: step])


class _Prefix:
    """Full attention: only the leading run counts. One native call for the request."""

    __slots__ = ("_args", "_hits", "_index", "_view")

    def __init__(
        self, view: RequestView, index: Index, plan: GroupPlan, block_hashes: Sequence[bytes], first: int
    ) -> None:
        self._view, self._index = view, index
        self._args = (plan, block_hashes, first)
        self._hits: frozenset[bytes] | None = None

    def present(self, key: bytes) -> bool:
        if self._hits is None:
            keys = chunk_keys(*self._args)
            count = self._index.lookup_count(keys) if keys else 0
            self._hits = frozenset(keys[:count])
            self._view.chunks_asked += len(keys)
            self._view.chunks_hit += count
        # Past the run the framework asks once more at most, or for a key between chunk boundaries.
        return key in self._hits or self._index.lookup_count([key]) == 1


class _Window:
    """Sliding window or recurrent state: the framework searches from the end for a run of hits.

    The index counts leading hits, so the keys are given to it in reverse: one call settles a whole run and
    the miss before it.
    """

    __slots__ = ("_args", "_index", "_keys", "_known", "_places", "_view")

    def __init__(
        self, view: RequestView, index: Index, plan: GroupPlan, block_hashes: Sequence[bytes], first: int
    ) -> None:
        self._view, self._index = view, index
        self._args = (plan, block_hashes, first)
        self._keys: list[bytes] | None = None
        self._places: dict[bytes, int] = {}
        self._known: dict[bytes, bool] = {}

    def present(self, key: bytes) -> bool:
        known = self._known.get(key)
        return self._probe(key) if known is None else known

    def _probe(self, key: bytes) -> bool:
        if self._keys is None:
            self._keys = chunk_keys(*self._args)
            self._places = {k: place for place, k in enumerate(self._keys)}
        place = self._places.get(key)
        # A key between chunk boundaries (a partial tail) stands alone.
        run = [key] if place is None else self._keys[max(0, place - PROBE_CHUNKS + 1) : place + 1][::-1]
        count = self._index.lookup_count(run)
        self._known.update(dict.fromkeys(run[:count], True))
        if count < len(run):
            self._known[run[count]] = False
        self._view.chunks_asked += min(count + 1, len(run))
        self._view.chunks_hit += count
        return self._known[key]
