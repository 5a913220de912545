"""`Loads`: promised pages into the device pool, layer by layer, on a thread of its own.

SGLang queues the loads of a batch's requests, starts them together, and runs the forward pass, which waits
for each layer before it reads it. Afterwards it asks whether all of it landed; a batch that did not is not
used.
"""

import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from kvtier_connectors.common.guard import record_fault
from kvtier_connectors.sglang_hicache.copier import Copier
from kvtier_connectors.sglang_hicache.pools import PoolLayout
from kvtier_connectors.sglang_hicache.tally import Tally
from kvtier_connectors.sglang_linker.breaker import Breaker

from kvtier import KVTierError, SlotLease

if TYPE_CHECKING:
    from kvtier import Namespace

logger = logging.getLogger(__name__)


class LayerCounter(Protocol):
    """SGLang's LayerWiseLoadCounter."""

    def update_producer(self) -> int:
        """The index of a new batch."""

    def complete(self, index: int, layer: int) -> None:
        """This layer of the batch has landed."""

    def fail(self, index: int, error: BaseException) -> None:
        """What has not landed of the batch will not."""

    def finish(self, index: int) -> bool:
        """Wait for all layers; whether all of them landed."""


class LoadFailed(Exception):
    """Some of a batch's pages did not land."""


@dataclass(eq=False)
class Load:
    """Of one request: its first `count` promised pages. lease None: there was no promise, and it fails."""

    lease: SlotLease | None
    count: int
    indices: Any  # of the device's tokens, a tensor


@dataclass(eq=False)
class Batch:
    """What one forward pass needs."""

    index: int
    loads: Sequence[Load]
    events: Sequence[Any]  # of the device; after these the pages may be written


class Loads:
    """`queue`, `cancel`, `start`, `finish` are called from SGLang's scheduler thread."""

    def __init__(
        self,
        layers: Sequence[PoolLayout],
        namespace: "Namespace",
        copier: Copier,
        counter: LayerCounter,
        tally: Tally,
        breaker: Breaker,
    ) -> None:
        self._layers = layers
        self._namespace = namespace
        self._copier = copier
        self._counter = counter
        self._tally = tally
        self._breaker = breaker
        self._queued: dict[str, Load] = {}
        self._started: set[int] = set()
        self._batches: queue.Queue[Batch | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="kvtier-load", daemon=True)
        self._thread.start()

    def queue(self, rid: str, load: Load) -> None:
        """Load this with the next batch."""
        self._queued[rid] = load

    def cancel(self, rid: str) -> bool:
        """Do not; False when it has begun, or was never queued."""
        load = self._queued.pop(rid, None)
        if load is None:
            return False
        self._release([load])
        return True

    def start(self, events: Sequence[Any]) -> int:
        """Begin what is queued. Returns the batch's index in the layer counter, -1 without one."""
        if not self._queued:
            return -1
        loads, self._queued = list(self._queued.values()), {}
        batch = Batch(self._counter.update_producer(), loads, events)
        self._started.add(batch.index)
        self._batches.put(batch)
        return batch.index

    def finish(self, index: int) -> bool:
        """Wait until this batch writes nothing any more. True: all of it landed."""
        if index not in self._started:
            return False  # of an index that we never gave nothing is known to have landed
        self._started.discard(index)
        return self._counter.finish(index)

    def cancel_all(self) -> None:
        """Give back what is queued."""
        for rid in list(self._queued):
            self.cancel(rid)

    def drain(self) -> None:
        """`cancel_all`, and wait for what has begun."""
        self.cancel_all()
        self._batches.join()
        self._started.clear()

    def close(self) -> None:
        """`drain`, and end the thread."""
        self.drain()
        self._batches.put(None)
        self._thread.join()

    # ---- the thread ----

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._run(batch)
            except Exception as fault:  # whatever it is: a forward pass waits for these layers
                record_fault("Loads", fault)
                self._counter.fail(batch.index, fault)
            finally:
                self._batches.task_done()
        self._batches.task_done()

    def _run(self, batch: Batch) -> None:
        pages = sum(load.count for load in batch.loads)
        error: BaseException = LoadFailed(f"{pages} pages: the cache has lost some of them")
        landed = 0
        try:
            landed = self._copy(batch)
        except KVTierError as lost:
            error = lost
        except Exception as fault:
            error = fault
            record_fault("Loads", fault)
        finally:
            self._release(batch.loads)
        if landed == pages:
            self._breaker.landed()
            self._tally.add(load_pages=pages)
            return
        self._breaker.failed()
        self._tally.add(failed_loads=1, missed_pages=pages - landed)
        logger.error("kvtier: a load of %d requests failed: %s", len(batch.loads), error)
        self._counter.fail(batch.index, error)

    def _copy(self, batch: Batch) -> int:
        """Pages that landed."""
        for event in batch.events:
            event.synchronize()
        leases = [load.lease for load in batch.loads if load.lease is not None]
        if len(leases) < len(batch.loads) or len({lease.attachment for lease in leases}) != 1:
            return 0
        counts = [load.count for load in batch.loads]
        whole = self._layers[0]
        pages = [whole.page_numbers(load.indices, load.count) for load in batch.loads]
        refs = [
            np.concatenate([part[:count] for part, count in zip(parts, counts, strict=True)])
            for parts in zip(*(lease.refs for lease in leases), strict=True)
        ]
        joined = SlotLease(0, leases[0].boot_id, leases[0].attachment, *refs)
        return self._copier.copy_parts(
            "load",
            self._layers,
            np.concatenate(pages),
            joined,
            lambda layer: self._counter.complete(batch.index, layer),
        )

    def _release(self, loads: Sequence[Load]) -> None:
        for load in loads:
            if load.lease is not None:
                self._namespace.release_slots(load.lease)
