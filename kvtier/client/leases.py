"""Leases as people hold them: context managers with the chunks' bytes as memoryviews.

A lease that was left, committed, aborted or released is over: its views are released, so that nobody reads
or writes a stranger's bytes through them by accident. (An array that was made from a view keeps the memory
mapped, never the chunk: do not use it after the lease.)
"""

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, overload

from kvtier.client.values import Grant, SlotGrants, SlotLease
from kvtier.errors import ChunkNotReady, LeaseExpired

if TYPE_CHECKING:
    from kvtier.client.namespace import Namespace


class ChunkViews(Sequence[memoryview]):
    """One memoryview of `chunk_bytes` per leased chunk, made when first asked for.

    To read: ChunkNotReady while the chunk's bytes are not there.
    """

    def __init__(self, ns: "Namespace", lease: SlotLease, *, writable: bool) -> None:
        self._ns = ns
        self._lease = lease
        self._writable = writable
        self._made: dict[int, memoryview] = {}
        self._over = ""

    def __len__(self) -> int:
        return len(self._lease)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> list[memoryview]: ...
    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if self._over:
            raise LeaseExpired(f"lease {self._lease.lease}: {self._over}; its views are not valid any more")
        at = range(len(self))[index]
        view = self._made.get(at)
        if view is None:
            if not self._writable and not self._ns.slot_ready(self._lease, at):
                raise ChunkNotReady(
                    f"chunk {at} of lease {self._lease.lease}: its bytes are not in DRAM; `wait`, and "
                    "if they do not come they are lost (`failed`)"
                )
            view = self._made[at] = self._ns.slot_view(self._lease, at, writable=self._writable)
        return view

    def end(self, why: str) -> None:
        """Release every view; from now on asking for one raises LeaseExpired(`why`)."""
        self._over = why
        for view in self._made.values():
            with suppress(BufferError):  # an array made from it is alive
                view.release()
        self._made.clear()


class WriteLease:
    """A right to write the granted chunks. Not thread-safe. Leaving it without `commit` aborts it."""

    def __init__(self, ns: "Namespace", keys: Sequence[bytes], grants: SlotGrants) -> None:
        self._ns = ns
        self._lease = grants
        self._over = ""
        self.grants = [Grant(grant) for grant in grants.grants.tolist()]  # one per key asked for
        self.keys = [key for key, grant in zip(keys, self.grants, strict=True) if grant is Grant.GRANTED]
        self.views = ChunkViews(ns, grants, writable=True)  # one per entry of `keys`

    def __len__(self) -> int:
        return len(self.keys)

    def commit(self) -> bool:
        """Make the chunks readable. False: the namespace was cleared meanwhile, and the chunks are gone.

        Raises LeaseExpired (aborted, committed or expired before) and DaemonUnavailable.
        """
        if self._over:
            raise LeaseExpired(f"lease {self._lease.lease}: {self._over}; it cannot be committed")
        self._end("committed")
        return self._ns.commit_slots(self._lease, wait=True)

    def abort(self) -> None:
        """Free the slots, as if never asked for. Nothing happens when the lease is over."""
        if not self._over:
            self._end("aborted")
            self._ns.abort_slots(self._lease)

    def _end(self, why: str) -> None:
        self._over = why
        self.views.end(why)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class ReadLease:
    """A right to read the leading chunks that were there; pinned until `release`. Not thread-safe.

    Chunks that lay on storage become readable one by one, in order. One that is lost on the way (corrupt,
    gone, too late) stays lost: it is in `failed`, and its view raises ChunkNotReady.
    """

    def __init__(self, ns: "Namespace", keys: Sequence[bytes], lease: SlotLease) -> None:
        self._ns = ns
        self._lease = lease
        self._over = ""
        self.keys = list(keys[: len(lease)])
        self.views = ChunkViews(ns, lease, writable=False)  # one per entry of `keys`, read-only

    def __len__(self) -> int:
        return len(self.keys)

    def wait(self, timeout_s: float) -> bool:
        """Until every chunk is in DRAM or lost, at most `timeout_s`; True when all are there.

        No bytes are wrong after a False: `failed` says which are lost, those before are there.
        """
        return not self._over and self._ns.wait_slots(self._lease, timeout_s) == len(self)

    def valid(self) -> bool:
        """No leased chunk was lost: call it after the bytes were read, and believe them only then."""
        return not self._over and bool(self._ns.unchanged(self._lease).all())

    @property
    def failed(self) -> list[bytes]:
        """Keys whose chunks were lost under the lease; all of them once the session has ended."""
        kept = self._ns.unchanged(self._lease).tolist()
        return [key for key, held in zip(self.keys, kept, strict=True) if not held]

    def release(self) -> None:
        """Give the chunks back. Nothing happens when that was done before."""
        if not self._over:
            self._over = "released"
            self.views.end("released")
            self._ns.release_slots(self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
