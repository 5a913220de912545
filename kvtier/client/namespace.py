"""`Namespace`: the chunks of one fingerprint, and the calls on them.

Two faces of the same calls. `lookup`, `lease`, `reserve` are for people: lists of keys, context
managers, memoryviews. `lookup_count`, `lease_slots`, `reserve_slots`, `commit_slots`, `abort_slots`,
`release_slots` are for adapters: one round trip per request, arrays in and out, nothing per block in Python.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from kvtier.client.leases import ReadLease, WriteLease
from kvtier.client.values import U8, Hit, Keys, SlotGrants, SlotLease
from kvtier.errors import DaemonUnavailable, InvalidArgument, LeaseExpired
from kvtier.io import native
from kvtier.types import UNCONFIRMED_CLEAR

if TYPE_CHECKING:
    from kvtier.client.session import Keeper


class Namespace:
    """Made by `Client.namespace`. Thread-safe; stays good over reattachments of a managed client."""

    def __init__(
        self, keeper: "Keeper", id: bytes, fingerprint_json: str, chunk_bytes: int, label: str = ""
    ) -> None:
        self._keeper = keeper
        self.id = id  # 16 bytes
        self.fingerprint_json = fingerprint_json  # canonical
        self.chunk_bytes = chunk_bytes
        self.label = label  # for people
        self.epoch_below = 0  # as the last daemon left it in shared memory; for the next one

    def __repr__(self) -> str:
        return f"Namespace({self.id.hex()}, chunk_bytes={self.chunk_bytes})"

    @property
    def attached(self) -> bool:
        """Open at the daemon: a call now has a chance to succeed."""
        attachment = self._keeper.attachment
        return attachment is not None and self.id in attachment.indexes

    def remember(self, epoch_below: int) -> None:
        """The daemon is gone, and this is what it knew. One without storage knows at most of a clear."""
        known = epoch_below & ~UNCONFIRMED_CLEAR
        unconfirmed = (epoch_below if known else epoch_below | self.epoch_below) & UNCONFIRMED_CLEAR
        self.epoch_below = (known or self.epoch_below & ~UNCONFIRMED_CLEAR) | unconfirmed

    # ---- for people ----

    def lookup(self, keys: Keys) -> Hit:
        """How many leading keys are readable: no IPC, no side effect, a hint. An absent daemon is a miss."""
        return self.lookup_tiers(keys)

    def reserve(self, keys: Keys) -> WriteLease:
        """A right to write those chunks that are not there yet. Leaving it without commit aborts.

        `WriteLease.grants` says why a key is left out. Raises DaemonUnavailable, InvalidArgument.
        """
        return WriteLease(self, [bytes(key) for key in keys], self.reserve_slots(keys))

    def lease(self, keys: Keys) -> ReadLease:
        """A right to read the leading keys that are there now: they are pinned until the release.

        Chunks on storage are on their way to DRAM when this returns: see `ReadLease.wait`. Nothing is there
        for it while the daemon drains. Raises DaemonUnavailable, InvalidArgument.
        """
        return ReadLease(self, [bytes(key) for key in keys], self.lease_slots(keys))

    def prefetch(self, keys: Keys) -> int:
        """Ask that these chunks be quick to load soon: those on storage are brought to DRAM, those there are
        marked as used, so that they stay.

        Posted: nobody waits. Returns how many of the leading keys are not in DRAM yet.
        """
        attachment, index = self._keeper.bound(self.id)
        with self._keeper.translate(attachment):
            chunks, host_chunks = attachment.session.lookup_tiers(index, keys)
            attachment.session.prefetch(index, keys)
        return chunks - host_chunks

    def touch(self, keys: Keys) -> None:
        """Mark chunks as used (posted), for instance when the engine hit them in its own memory."""
        attachment, index = self._keeper.bound(self.id)
        with self._keeper.translate(attachment):
            attachment.session.touch(index, keys)

    def renew(self, keys: Keys) -> None:
        """The beginning of a prefix, after a reserve of what lies behind it: the end is to be evicted first.

        Posted, and no use of the chunks. Within one reserve the order of its keys sees to that already.
        """
        attachment, index = self._keeper.bound(self.id)
        with self._keeper.translate(attachment):
            attachment.session.renew(index, keys)

    def clear(self) -> int:
        """Make every chunk unreadable, at once and for all engines; returns how many there were."""
        return self._keeper.clear_namespace(self.id)

    # ---- for adapters ----

    def lookup_count(self, keys: Keys) -> int:
        """Leading keys that are readable, from any tier. Never raises for an absent daemon: 0."""
        attachment = self._keeper.attachment
        index = None if attachment is None else attachment.indexes.get(self.id)
        if attachment is None or index is None:
            self._keeper.nudge()
            return 0
        try:
            return attachment.session.lookup(index, keys)
        except native.DaemonLost as error:
            self._keeper.report_lost(attachment, str(error))
            return 0
        except (ValueError, TypeError) as error:
            raise InvalidArgument(str(error)) from None

    def lookup_tiers(self, keys: Keys) -> Hit:
        """The same, by tier."""
        attachment = self._keeper.attachment
        index = None if attachment is None else attachment.indexes.get(self.id)
        if attachment is None or index is None:
            self._keeper.nudge()
            return Hit()
        try:
            chunks, host_chunks = attachment.session.lookup_tiers(index, keys)
        except native.DaemonLost as error:
            self._keeper.report_lost(attachment, str(error))
            return Hit()
        except (ValueError, TypeError) as error:
            raise InvalidArgument(str(error)) from None
        return Hit(chunks, host_chunks, chunks - host_chunks)

    def present(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Of each key by itself: it is readable, from any tier. An absent daemon: none is."""
        attachment = self._keeper.attachment
        index = None if attachment is None else attachment.indexes.get(self.id)
        if attachment is None or index is None:
            self._keeper.nudge()
            return np.zeros(len(keys), np.bool_)
        try:
            return attachment.session.present(index, keys)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(str(error)) from None

    def lease_slots(self, keys: Keys) -> SlotLease:
        """Pin the leading keys that are there: one round trip. `len()` of it says how many, 0 is a miss.

        Slots of chunks on storage are being filled: a copy engine waits for each, others see `wait_slots`.
        """
        attachment, index = self._keeper.bound(self.id)
        with self._keeper.translate(attachment):
            grant = attachment.session.lease(index, keys)
        refs = grant.refs
        return SlotLease(
            grant.lease, attachment.boot_id, attachment.number, refs.slots, refs.generations, refs.offsets
        )

    def reserve_slots(self, keys: Keys) -> SlotGrants:
        """Ask for slots for those keys that are not there yet: one round trip, an answer per key."""
        attachment, index = self._keeper.bound(self.id)
        with self._keeper.translate(attachment):
            grant = attachment.session.reserve(index, keys)
        if grant.lease and not self._keeper.may_write(attachment, grant.lease):
            raise DaemonUnavailable(f"lease {grant.lease}: its session ended as it was granted")
        refs = grant.refs
        return SlotGrants(
            grant.lease,
            attachment.boot_id,
            attachment.number,
            refs.slots,
            refs.generations,
            refs.offsets,
            grant.grants,
        )

    def commit_slots(self, lease: SlotLease, keep: U8 | None = None, *, wait: bool = False) -> bool:
        """Make written chunks readable. keep: one byte per slot, 0 aborts that slot; None commits all.

        Posted unless `wait`. With wait, False says that the namespace was cleared since the reserve, and an
        unknown lease raises LeaseExpired. Posted, a lease of an earlier attachment is dropped silently
        (False): the daemon has taken it back already.
        """
        if lease.lease == 0:
            return True
        if keep is not None and len(keep) != len(lease):
            raise InvalidArgument(f"keep: {len(keep)} entries for a lease of {len(lease)} slots")
        self._keeper.done_writing(lease)
        attachment = self._keeper.attachment_of(lease)
        if attachment is None:
            if wait:
                raise LeaseExpired(f"lease {lease.lease}: taken in a session that has ended since")
            return False
        with self._keeper.translate(attachment, lease=lease.lease):
            return attachment.session.commit(lease.lease, keep, wait=wait)

    def abort_slots(self, lease: SlotLease) -> None:
        """Free reserved slots, as if never asked for (posted). No process may write them any more.

        A lease of a lost session is dropped silently: the daemon has taken it back.
        """
        self._give_back(lease, "abort")

    def release_slots(self, lease: SlotLease) -> None:
        """Give a read lease back (posted), as `abort_slots`. No process may read its slots any more."""
        self._give_back(lease, "release")

    def _give_back(self, lease: SlotLease, how: Literal["abort", "release"]) -> None:
        self._keeper.done_writing(lease)
        attachment = self._keeper.attachment_of(lease)
        if attachment is None or lease.lease == 0:
            return
        with suppress(DaemonUnavailable), self._keeper.translate(attachment, lease=lease.lease):
            if how == "abort":
                attachment.session.abort(lease.lease)
            else:
                attachment.session.release(lease.lease)

    def slot_view(self, lease: SlotLease, index: int, *, writable: bool = False) -> memoryview:
        """The bytes of chunk `index` of a lease, in the arena. LeaseExpired when the session has ended."""
        attachment = self._keeper.attachment_of(lease)
        if attachment is None:
            raise LeaseExpired(f"lease {lease.lease}: taken in a session that has ended since")
        offset = int(lease.offsets[index])
        with self._keeper.translate(attachment):
            return attachment.session.view(offset, self.chunk_bytes, writable)

    def wait_slots(self, lease: SlotLease, timeout_s: float) -> int:
        """Until every chunk of a read lease is in DRAM or lost, at most `timeout_s`; leading ones that are
        there. 0 when the session has ended, which also ends the wait.
        """
        attachment = self._keeper.attachment_of(lease)
        if attachment is None:
            return 0
        with self._keeper.translate(attachment):
            return attachment.session.wait_ready(lease.slots, lease.generations, timeout_s)

    def slot_ready(self, lease: SlotLease, index: int) -> bool:
        """Chunk `index` of a read lease is in DRAM. LeaseExpired when the session has ended."""
        attachment = self._keeper.attachment_of(lease)
        if attachment is None:
            raise LeaseExpired(f"lease {lease.lease}: taken in a session that has ended since")
        one = slice(index, index + 1)
        with self._keeper.translate(attachment):
            return attachment.session.wait_ready(lease.slots[one], lease.generations[one], 0.0) == 1

    def unchanged(self, lease: SlotLease) -> npt.NDArray[np.bool_]:
        """Per slot: it still holds what it held when it was leased, or will: a chunk on its way from storage
        is not lost yet. All False when the session has ended.
        """
        attachment = self._keeper.attachment_of(lease)
        if attachment is None:
            return np.zeros(len(lease), np.bool_)
        with self._keeper.translate(attachment):
            return attachment.session.unchanged(lease.slots, lease.generations)
