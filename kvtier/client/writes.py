"""`OpenWrites`: the write leases that callers of this process hold, over the losses of its sessions.

A lease whose session was lost is quarantined by the daemon, as its holder may still be writing. The holder's
commit or abort, which comes all the same, says that it is over; the client passes that on in its next
session with a daemon of the same arena, be it the same or one that has taken it over, and the slots are free
again.

  held ----done----> over                          (the session lives: its own commit or abort says so)
  held --end--> orphaned --done--> late --take_late--> told
"""

import threading

from kvtier.client.values import SlotLease


class OpenWrites:
    """Of one process. Thread-safe; no method waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, set[int]] = {}  # attachment's number -> its leases
        self._ended = 0  # attachments up to this number are over
        self._orphaned: dict[tuple[int, int], bytes] = {}  # (attachment's number, lease) -> arena
        self._late: list[tuple[bytes, int]] = []

    def add(self, attachment: int, lease: int) -> bool:
        """A lease was granted. False: its session has ended meanwhile, and nobody may use the lease."""
        with self._lock:
            if attachment <= self._ended:
                return False
            self._held.setdefault(attachment, set()).add(lease)
            return True

    def done(self, lease: SlotLease) -> bool:
        """Nobody writes under this lease any more. True: that comes late, `take_late` has it."""
        with self._lock:
            held = self._held.get(lease.attachment)
            if held is not None:
                held.discard(lease.lease)
                return False
            arena = self._orphaned.pop((lease.attachment, lease.lease), None)
            if arena is None:
                return False
            self._late.append((arena, lease.lease))
            return True

    def end(self, attachment: int, arena: bytes) -> list[int]:
        """The session is over. Returns what its callers still hold."""
        with self._lock:
            self._ended = attachment
            held = sorted(self._held.pop(attachment, set()))
            self._orphaned.update({(attachment, lease): arena for lease in held})
            return held

    def take_late(self, arena: bytes) -> list[int]:
        """Leases that were over too late, to be told to the daemon of this arena, once.

        What belongs to another arena is forgotten: that one is gone.
        """
        with self._lock:
            late = [lease for of, lease in self._late if of == arena]
            self._late = []
            self._orphaned = {orphan: of for orphan, of in self._orphaned.items() if of == arena}
            return late
