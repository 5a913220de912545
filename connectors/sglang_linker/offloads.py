"""`Offloads`: pages of the device pool into kvtier, on a thread of its own, reported in the order given.

SGLang keeps a node's pages locked from an offload until it has fetched its result, the oldest first. So a
result must never be early: it would unlock the pages of another offload, which are still being copied.
"""

import queue
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtier_connectors.common.guard import record_fault
from kvtier_connectors.sglang_hicache.keys import pack
from kvtier_connectors.sglang_hicache.shelf import Shelf

WAITING_MAX = 64  # nodes, whose pages cannot be evicted meanwhile; more are not stored


@dataclass(eq=False)
class Offload:
    """One node. stored None: not known yet."""

    keys: Sequence[str]
    indices: Any  # of the device's tokens, a tensor
    events: Sequence[Any] = ()  # of the device; after these the pages are written
    stored: bool | None = None


class Offloads:
    """All methods but the thread's are called from SGLang's scheduler thread."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._given: deque[Offload] = deque()
        self._queue: queue.Queue[Offload | None] = queue.Queue()
        self._dropping = False  # what waits is not stored
        self._thread = threading.Thread(target=self._work, name="kvtier-offload", daemon=True)
        self._thread.start()

    def give(self, offload: Offload) -> None:
        """Store this node, unless its pages are there, nobody is there to take them, or too many wait."""
        there = self._shelf.present(pack(offload.keys)).all()
        self._given.append(offload)  # from here on its result is waited for
        if there:
            offload.stored = True
        elif not self._shelf.namespace.attached or self._queue.qsize() >= WAITING_MAX:
            self._shelf.tally.add(skipped_offloads=1)
            offload.stored = False
        else:
            self._queue.put(offload)

    def ended(self) -> int:
        """Results that can be fetched."""
        for count, offload in enumerate(self._given):
            if offload.stored is None:
                return count
        return len(self._given)

    def pop(self) -> bool:
        """The oldest result."""
        return bool(self._given.popleft().stored)

    def drain(self) -> None:
        """Wait for what is being copied, drop what is not yet, and forget all results."""
        self._dropping = True
        self._queue.join()
        self._dropping = False
        self._given.clear()

    def close(self) -> None:
        """`drain`, and end the thread."""
        self.drain()
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (offload := self._queue.get()) is not None:
            stored = False
            try:
                if not self._dropping:
                    for event in offload.events:
                        event.synchronize()
                    stored = bool(self._shelf.set(offload.keys, offload.indices).all())
            except Exception as error:  # whatever it is, the node must be unlocked
                record_fault("Offloads", error)
            finally:
                offload.stored = stored
                self._queue.task_done()
        self._queue.task_done()
