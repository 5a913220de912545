"""`Promises`: what a lookup has answered is held until the request loads it.

SGLang ends a request whose load fails after a hit. So a page counts only when a lease pins it, it is in DRAM,
and an engine is there to copy it: from then on a load needs nobody, not even the daemon. Pages on storage are
on their way when they are leased; they count once they have come, for a request that is still queued then.

SGLang does not say when a queued request is given up. A promise that nobody has asked about for HOLD_S is
dropped; a later lookup makes it anew. So is one that is as old as RENEW_S: the daemon ends every lease at its
lease_timeout (600 s by default), however often it is asked about.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtier_connectors.sglang_hicache.copier import Copier
from kvtier_connectors.sglang_hicache.keys import PackedKeys, pack
from kvtier_connectors.sglang_hicache.tally import Tally

if TYPE_CHECKING:
    from kvtier import Namespace, SlotLease

HOLD_S = 10.0
RENEW_S = 15.0  # well before a lease_timeout of half a minute
HELD_MAX = 256  # requests; SGLang looks up those that it is about to run, and the queue as far as it sorts it


@dataclass(eq=False)
class Promise:
    """To one request."""

    keys: Sequence[str]
    lease: "SlotLease"
    pages: int  # leading ones that are in DRAM
    asked_s: float
    made_s: float


class Promises:
    """Thread-safe, though SGLang asks from one thread."""

    def __init__(
        self,
        namespace: "Namespace",
        copier: Copier,
        tally: Tally,
        *,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """wait_s: how long a new promise waits for pages from storage."""
        self._namespace = namespace
        self._copier = copier
        self._tally = tally
        self._wait_s = wait_s
        self._clock = clock
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Promise] = OrderedDict()  # least recently asked first

    def __len__(self) -> int:
        return len(self._held)

    def make(self, rid: str, keys: Sequence[str]) -> int:
        """Leading pages that this request can load. Raises DaemonUnavailable."""
        with self._lock:
            pages = self._renewed(rid, keys)
            if pages is None:
                self._drop(rid)
                pages = self._new(rid, keys)
            return pages

    def _renewed(self, rid: str, keys: Sequence[str]) -> int | None:
        """Of a promise that is still good; None: make a new one."""
        held = self._held.get(rid)
        if held is None or held.keys != keys or not self._copier.serves(held.lease):
            return None
        if self._clock() - held.made_s >= RENEW_S:
            return None
        if held.pages < len(held.lease):
            held.pages = max(held.pages, self._namespace.wait_slots(held.lease, 0.0))
        if len(held.lease) < len(keys) and self._namespace.lookup_count(pack(keys)) > len(held.lease):
            return None  # more has been stored since
        held.asked_s = self._clock()
        self._held.move_to_end(rid)
        return held.pages

    def _new(self, rid: str, keys: Sequence[str]) -> int:
        packed = pack(keys)
        there = self._namespace.lookup_count(packed)
        self._tally.add(asked_pages=len(keys), hit_pages=there)
        lease = self._lease(packed[:there]) if there else None
        if lease is None:
            return 0
        pages = self._namespace.wait_slots(lease, self._wait_s)
        now_s = self._clock()
        self._held[rid] = Promise(keys, lease, pages, asked_s=now_s, made_s=now_s)
        while len(self._held) > HELD_MAX:
            self._drop(next(iter(self._held)))
        return pages

    def _lease(self, packed: PackedKeys) -> "SlotLease | None":
        lease = self._namespace.lease_slots(packed)
        if not len(lease):
            return None
        if not self._copier.serves(lease):
            self._namespace.release_slots(lease)
            return None
        return lease

    def take(self, rid: str, keys: Sequence[str]) -> "SlotLease | None":
        """The lease of a promise of at least these pages, which is the caller's now. None: there is none."""
        with self._lock:
            held = self._held.get(rid)
            if (
                held is None
                or held.pages < len(keys)
                or list(held.keys[: len(keys)]) != list(keys)
                or not self._copier.serves(held.lease)
            ):
                self._drop(rid)
                return None
            return self._held.pop(rid).lease

    def drop_stale(self) -> None:
        """Give back what nobody has asked about for long."""
        with self._lock:
            old_s = self._clock() - HOLD_S
            while self._held:
                rid, oldest = next(iter(self._held.items()))
                if oldest.asked_s > old_s:
                    return
                self._drop(rid)

    def drop_all(self) -> None:
        """Give everything back."""
        with self._lock:
            for rid in list(self._held):
                self._drop(rid)

    def _drop(self, rid: str) -> None:
        held = self._held.pop(rid, None)
        if held is not None:
            self._namespace.release_slots(held.lease)
