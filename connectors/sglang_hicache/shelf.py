"""`Shelf`: the pages of one host pool in kvtier, one chunk each. Every call is a bounded few round trips.

Answers are per page: what is not there, not in time or not whole is False. No call raises for an absent
daemon.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from kvtier_connectors.sglang_hicache.copier import Copier
from kvtier_connectors.sglang_hicache.keys import PackedKeys, pack
from kvtier_connectors.sglang_hicache.pools import PoolLayout
from kvtier_connectors.sglang_hicache.tally import Tally

from kvtier import DaemonUnavailable, Grant

if TYPE_CHECKING:
    from kvtier import Namespace

Answers = npt.NDArray[np.bool_]  # one per page

# Whoever else has the page reserved is about to store it.
_STORED_BY_OTHERS = (Grant.PRESENT, Grant.PENDING)


@dataclass(frozen=True)
class Shelf:
    """Thread-safe: nothing in it changes."""

    pool: PoolLayout
    namespace: "Namespace"
    copier: Copier
    tally: Tally

    # ---- which pages are there ----

    def leading(self, keys: PackedKeys) -> int:
        """Leading pages that are there. Those on storage are asked for: SGLang gets them next."""
        hit = self.namespace.lookup_tiers(keys)
        if hit.storage_chunks:
            self.prefetch(keys[: hit.chunks])
        self.tally.add(asked_pages=len(keys), hit_pages=hit.chunks, hit_pages_on_storage=hit.storage_chunks)
        return hit.chunks

    def present(self, keys: PackedKeys) -> Answers:
        """Of each page by itself: it is there."""
        return self.namespace.present(keys)

    def prefetch(self, keys: PackedKeys) -> None:
        """Have these brought to DRAM soon. Posted."""
        try:
            self.namespace.prefetch(keys)
        except DaemonUnavailable:
            self.tally.add(unavailable=1)

    # ---- SGLang's host pages ----

    def get(self, keys: Sequence[str], host_indices: Any) -> Answers:
        """Load pages into the host pool. Returns when nothing will write there any more."""
        pages = self.pool.page_numbers(host_indices, len(keys))
        began_s = time.monotonic()
        loaded = 0
        try:
            lease = self.namespace.lease_slots(pack(keys))
            try:
                if len(lease):
                    loaded = self.copier.copy("load", self.pool, pages[: len(lease)], lease)
            finally:
                self.namespace.release_slots(lease)
        except DaemonUnavailable:
            self.tally.add(unavailable=1)
        self.tally.add(missed_pages=len(keys) - loaded)
        if loaded:
            self.tally.moved("load", loaded, self.pool.page_bytes, time.monotonic() - began_s)
        return np.arange(len(keys)) < loaded

    def set(self, keys: Sequence[str], host_indices: Any, before: Sequence[str] = ()) -> Answers:
        """Store those pages that are not there yet. before: keys of the same sequence, up to its
        beginning."""
        pages = self.pool.page_numbers(host_indices, len(keys))
        began_s = time.monotonic()
        stored = np.zeros(len(keys), np.bool_)
        try:
            lease = self.namespace.reserve_slots(pack(keys))
            granted = np.flatnonzero(lease.grants == Grant.GRANTED)
            stored = np.isin(lease.grants, _STORED_BY_OTHERS)
            copied = 0
            try:
                if len(granted):
                    copied = self.copier.copy("store", self.pool, pages[granted], lease)
            finally:
                kept = (np.arange(len(granted)) < copied).astype(np.uint8)
                committed = self.namespace.commit_slots(lease, kept)
            if committed:
                stored[granted[:copied]] = True
            if before:
                # A sequence is stored from its beginning, and what is older is evicted first: its end should
                # be.
                self.namespace.renew(pack(before))
        except DaemonUnavailable:
            self.tally.add(unavailable=1)
            return np.zeros(len(keys), np.bool_)
        self.tally.add(refused_pages=int(len(keys) - stored.sum()))
        if copied:
            self.tally.moved("store", copied, self.pool.page_bytes, time.monotonic() - began_s)
        return stored

    # ---- flat pages, of engines without zero copy ----

    def get_flat(self, keys: Sequence[str], targets: Sequence[Any], timeout_s: float) -> Answers:
        """Load pages into these buffers of bytes, one each."""
        loaded = np.zeros(len(keys), np.bool_)
        try:
            lease = self.namespace.lease_slots(pack(keys))
            try:
                ready = self.namespace.wait_slots(lease, timeout_s)
                for i in range(ready):
                    memoryview(targets[i])[:] = self.namespace.slot_view(lease, i)
                loaded[:ready] = self.namespace.unchanged(lease)[:ready]
            finally:
                self.namespace.release_slots(lease)
        except DaemonUnavailable:
            self.tally.add(unavailable=1)
        self.tally.add(load_pages=int(loaded.sum()), missed_pages=int(len(keys) - loaded.sum()))
        return loaded

    def set_flat(self, keys: Sequence[str], values: Sequence[Any]) -> Answers:
        """Store these buffers of bytes, one page each."""
        stored = np.zeros(len(keys), np.bool_)
        try:
            lease = self.namespace.reserve_slots(pack(keys))
            granted = np.flatnonzero(lease.grants == Grant.GRANTED)
            written = False
            try:
                for slot, page in enumerate(granted):
                    self.namespace.slot_view(lease, slot, writable=True)[:] = memoryview(values[page])
                written = True
            finally:
                kept = np.full(len(granted), written, np.uint8)
                committed = self.namespace.commit_slots(lease, kept)
            stored = np.isin(lease.grants, _STORED_BY_OTHERS)
            stored[granted] = committed
        except DaemonUnavailable:
            self.tally.add(unavailable=1)
            return stored
        self.tally.add(store_pages=len(granted), refused_pages=int(len(keys) - stored.sum()))
        return stored
