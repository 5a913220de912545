"""Copies between SGLang's pools and slots of the arena: synchronous, bounded, and over when they return.

A `Lane` is a native copy engine on the arena of one attachment. After a reattachment a new one takes over. A
copy that is not over in time ends with its lane: closing the engine waits for the bytes that are moving just
then, and for nothing else. So no page of a pool is touched after `copy` has returned, and SGLang may use it
anew.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from kvtier_connectors.sglang_hicache.pools import PoolLayout

from kvtier import KVTierError

if TYPE_CHECKING:
    from kvtier import Client, CopyEngine, Device, SlotLease

# Memory is copied by then, on any machine that is not out of memory.
STORE_DEADLINE_S = 5.0


@dataclass(eq=False)
class Lane:
    """A copy engine, the layouts that it knows, and the ends of jobs that nobody has fetched yet."""

    engine: "CopyEngine"
    attachment: int
    layouts: dict[str, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)  # job -> leading chunks that are valid
    lock: threading.Lock = field(default_factory=threading.Lock)

    def layout(self, pool: PoolLayout) -> int:
        """The engine's id of a pool's layout."""
        with self.lock:
            if pool.name not in self.layouts:
                self.layouts[pool.name] = self.engine.add_layout(
                    list(pool.regions), pool.pages, 1, pool.slot_offset
                )
            return self.layouts[pool.name]

    def take(self, job: int) -> int:
        """What became of a job that has ended: its leading chunks that are valid."""
        with self.lock:
            for ended, _, _, _, valid in self.engine.poll():
                self.ended[ended] = valid
            return self.ended.pop(job)


class Copier:
    """Thread-safe: SGLang stores, loads and asks from a thread each."""

    def __init__(
        self, client: "Client", *, threads: int, load_deadline_ms: int, device: "Device | None" = None
    ) -> None:
        """device: where the pools are; None: plain memory of this process."""
        self._client = client
        self._device = device
        self._threads = threads
        self._load_deadline_ms = load_deadline_ms
        self._jobs = count(1)
        self._swap = threading.Lock()
        self._lane: Lane | None = None
        self._closed = False

    def copy(
        self,
        direction: Literal["store", "load"],
        pool: PoolLayout,
        pages: npt.NDArray[np.int64],
        lease: "SlotLease",
    ) -> int:
        """Copy one page per slot of the lease. Returns how many leading ones are good.

        0 also when the lease's attachment is over. Raises KVTierError (no daemon, no engine).
        """
        return self.copy_parts(direction, (pool,), pages, lease)

    def copy_parts(
        self,
        direction: Literal["store", "load"],
        parts: Sequence[PoolLayout],
        pages: npt.NDArray[np.int64],
        lease: "SlotLease",
        landed: Callable[[int], None] | None = None,
    ) -> int:
        """`copy`, of pages in several parts, in order. landed(i): part i is whole, of all pages."""
        lane = self._lane_of(lease)
        if lane is None:
            return 0
        timeout_s = STORE_DEADLINE_S if direction == "store" else self._load_deadline_ms / 1000
        end_s = time.monotonic() + timeout_s
        jobs: list[int] = []
        try:
            for part in parts:
                layout, job = lane.layout(part), next(self._jobs)
                lane.engine.submit(
                    job, direction, [layout], [len(pages)], pages, np.arange(len(pages)), lease.refs
                )
                jobs.append(job)
        except RuntimeError:  # closed meanwhile, by a reattachment or a copy that was late
            self._end(lane)
        good = len(pages)
        for part_number, job in enumerate(jobs):
            if not lane.engine.wait([job], max(0.0, end_s - time.monotonic())):
                self._end(lane)
            good = min(good, lane.take(job))
            if landed is not None and good == len(pages):
                landed(part_number)
        return good if len(jobs) == len(parts) else 0

    def serves(self, lease: "SlotLease") -> bool:
        """A copy of this lease has its engine, whatever becomes of the daemon now."""
        try:
            return lease.attachment == self._client.attachment and self._lane_of(lease) is not None
        except KVTierError:
            return False

    def _lane_of(self, lease: "SlotLease") -> Lane | None:
        with self._swap:
            lane = self._lane
            if lane is not None and lane.attachment == lease.attachment:
                return lane
            if self._closed or self._client.attachment != lease.attachment:
                return None
            engine = self._client.copy_engine(
                self._threads, load_deadline_ms=self._load_deadline_ms, device=self._device
            )
            if self._client.attachment != lease.attachment:  # attached anew in between: of which arena is it?
                engine.close()
                return None
            former, lane = lane, Lane(engine, lease.attachment)
            self._lane = lane
        if former is not None:
            former.engine.close()
        return lane

    def _end(self, lane: Lane) -> None:
        lane.engine.close()
        with self._swap:
            if self._lane is lane:
                self._lane = None

    def close(self) -> None:
        """End what is under way, and take nothing more. Idempotent."""
        with self._swap:
            self._closed = True
            lane, self._lane = self._lane, None
        if lane is not None:
            lane.engine.close()
