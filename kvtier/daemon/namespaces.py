"""Namespaces of this boot: which fingerprint stands behind an id, and which index the store gave it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from kvtier.clock import Clock, MonotonicClock
from kvtier.daemon.floors import FloorKeeper
from kvtier.daemon.names import shown
from kvtier.daemon.storage import StorageTier
from kvtier.errors import (
    FingerprintMismatch,
    InvalidArgument,
    LimitReached,
    NamespaceMismatch,
    StorageUnavailable,
    UnknownNamespace,
)
from kvtier.format.fingerprint import namespace_id, parse_canonical
from kvtier.io.native import Store
from kvtier.types import NAMESPACE_ID_BYTES, UNCONFIRMED_CLEAR, NamespaceInfo

NAMESPACES_MAX: Final = 1024
SETTLE_S: Final = 1.0
"""How long an engine that opens a namespace waits for what the root says; see `Namespaces.settle`."""


@dataclass(frozen=True, slots=True)
class _Entry:
    index: int
    chunk_bytes: int
    fingerprint_json: str
    label: str
    opened_s: float = 0.0
    told: int = 0
    """With which epoch it went on; see `StorageTier.open_namespace`."""
    cleared: bool = False
    """By this daemon: whatever its engines remember is over."""


class Namespaces:
    """Used by one thread, the daemon's event loop."""

    def __init__(
        self,
        store: Store,
        boot_id: int,
        id_of: Callable[[str], bytes] = namespace_id,
        storage: StorageTier | None = None,
        floors: FloorKeeper | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or MonotonicClock()
        self._storage = storage
        self._floors = floors
        self._boot_id = boot_id
        self._id_of = id_of
        self._entries: dict[bytes, _Entry] = {}
        # Of an earlier daemon, and not opened in this one's time: their fingerprints are not known yet.
        self._unopened = {row["id"]: row for row in store.namespaces()}

    def open(
        self, fingerprint_json: str, chunk_bytes: int, label: str = "", epoch_below: int = 0
    ) -> NamespaceInfo:
        """The namespace of this fingerprint, made if it is new. Refuses another chunk size or fingerprint.

        epoch_below: what the caller remembers of it from an earlier daemon, 0 if nothing.
        """
        parse_canonical(fingerprint_json)
        id = self._id_of(fingerprint_json)
        entry = self._entries.get(id)
        if entry is None:
            if chunk_bytes < 1:
                raise InvalidArgument(f"chunk_bytes is {chunk_bytes}; at least 1 is wanted")
            unopened = self._unopened.get(id)
            if unopened is not None and unopened["chunk_bytes"] != chunk_bytes:
                raise _mismatch(id, chunk_bytes, unopened["chunk_bytes"])
            index = self._row(id, chunk_bytes)
            outlived = self._unopened.pop(id, None) is not None
            # One without chunks has made way for it, perhaps.
            self._unopened = {other: row for other, row in self._unopened.items() if row["index"] != index}
            told, cleared = self._go_on(index, outlived, epoch_below)
            if not self._has_storage and not outlived and told:
                self._store.set_epoch_below(index, told)
            entry = _Entry(
                index, chunk_bytes, fingerprint_json, shown(label), self._clock.now_s(), told, cleared
            )
            self._entries[id] = entry
            if self._floors is not None:
                self._floors.open(id, index, entry.label)
            if self._storage is not None:
                self._storage.open_namespace(index, id, chunk_bytes, fingerprint_json, told)
        elif entry.fingerprint_json != fingerprint_json:
            raise FingerprintMismatch(
                f"namespace {id.hex()} is known with another fingerprint: {entry.fingerprint_json}"
            )
        elif entry.chunk_bytes != chunk_bytes:
            raise _mismatch(id, chunk_bytes, entry.chunk_bytes)
        self._keep_in_mind(entry.index, epoch_below)
        if label and not entry.label:
            entry = self._entries[id] = replace(entry, label=shown(label))
            if self._floors is not None:
                self._floors.open(id, entry.index, entry.label)
        return self._info(id, entry, self._counted().get(entry.index, {}))

    @property
    def _has_storage(self) -> bool:
        return self._storage is not None and self._storage.on

    def _row(self, id: bytes, chunk_bytes: int) -> int:
        """Its index in the store. LimitReached when the arena's table is full of those that are in use."""
        try:
            return self._store.open_namespace(id, chunk_bytes)
        except ValueError as error:
            if "namespaces_max" not in str(error):
                raise
            raise LimitReached(
                f"{len(self._entries)} namespaces are open and {len(self._unopened)} are an earlier "
                f"daemon's, with chunks; {NAMESPACES_MAX} are allowed (kvtier admin evict makes room for "
                "when the daemon starts anew, kvtier serve --fresh forgets all)"
            ) from None

    def _keep_in_mind(self, index: int, remembered: int) -> None:
        """A clear that storage never learned of is for a daemon that has storage, and finds this arena."""
        word = self._store.epoch_below(index)
        if not self._has_storage and remembered & UNCONFIRMED_CLEAR & ~word:
            self._store.set_epoch_below(index, word | UNCONFIRMED_CLEAR)

    def _go_on(self, index: int, outlived: bool, remembered: int) -> tuple[int, bool]:
        """What storage is told of its epoch, and whether the namespace was cleared for it.

        outlived: chunks of it may lie in the arena, of the epoch that stands there.
        """
        in_arena = self._store.epoch_below(index) if outlived else 0
        if not self._has_storage:
            return in_arena or remembered, False
        if remembered:
            if not outlived or in_arena:
                return in_arena or remembered, False
            # Of no epoch that is known: an engine with other weights may have stored what there is.
            self._store.clear_namespace(index)
            return UNCONFIRMED_CLEAR, True
        # An engine that has just started is of the root's highest epoch; what lies here need not be.
        if in_arena & UNCONFIRMED_CLEAR:  # of an epoch that was never made
            self._store.clear_namespace(index)
            return UNCONFIRMED_CLEAR, True
        if outlived:
            self._store.withhold_namespace(index)
        return 0, False

    async def settle(self, id: bytes) -> None:
        """Until the root has said whether chunks of an earlier daemon may be served, for a moment at most:
        whoever opens a namespace finds them at once. Where it takes longer they come later. Nobody waits when
        that moment, from its first opening on, is over.
        """
        entry = self._entries[id]
        wait_s = entry.opened_s + SETTLE_S - self._clock.now_s()
        if self._has_storage and wait_s > 0:
            await asyncio.to_thread(self._store.await_settled, entry.index, wait_s)

    def contradicts(self, id: bytes, epoch_below: int) -> bool:
        """The caller remembers another epoch than the one it has on storage, because somebody opened it first
        who remembered none, or another: nobody can say whose chunks are whose, so it is to be cleared.
        """
        entry = self._entries[id]
        if not epoch_below or entry.cleared or not self._has_storage:
            return False
        return epoch_below not in (entry.told, self._store.epoch_below(entry.index))

    def index(self, id: bytes) -> int:
        """Index of a known namespace; UnknownNamespace, InvalidArgument."""
        if len(id) != NAMESPACE_ID_BYTES:
            raise InvalidArgument(
                f"namespace_id has {len(id)} bytes; {NAMESPACE_ID_BYTES} are wanted (see kvtier ls)"
            )
        entry = self._entries.get(id)
        if entry is not None:
            return entry.index
        if id in self._unopened:
            return int(self._unopened[id]["index"])
        raise UnknownNamespace(f"namespace {id.hex()} is not known to this daemon")

    def set_floor(self, id: bytes, floor_bytes: int) -> None:
        """Of a known namespace, until a daemon opens it anew; InvalidArgument when it does not fit."""
        index = self.index(id)
        if self._floors is not None:
            self._floors.set(index, floor_bytes)

    async def clear(self, id: bytes) -> int:
        """Make every chunk of the namespace unreadable; how many there were. It may lie on storage alone.

        StorageUnavailable: those in memory are, the others are not.
        """
        if len(id) == NAMESPACE_ID_BYTES and id not in self._entries and self._storage and self._storage.on:
            return await self._clear_unopened(id, self._storage)
        index = self.index(id)
        if id in self._entries:
            self._entries[id] = replace(self._entries[id], cleared=True)
        chunks = self._store.clear_namespace(index)
        if self._storage is not None:
            # A walk over the catalog, which may be large: the loop goes on meanwhile.
            await asyncio.to_thread(self._storage.clear_namespace, index)
        return chunks

    async def _clear_unopened(self, id: bytes, storage: StorageTier) -> int:
        """No engine has opened it in this daemon's time: whoever does finds nothing of before."""
        left = self._unopened.get(id)
        chunks = 0 if left is None else self._store.clear_namespace(left["index"])
        try:
            epoch = await asyncio.to_thread(storage.clear_unopened, id)
        except ValueError as error:
            later = "try again" if left is None else "it will be when an engine opens it"
            raise StorageUnavailable(
                f"namespace {id.hex()}: {chunks} chunks in memory were cleared, what lies on storage was not "
                f"({error}); {later}"
            ) from None
        if id in self._entries:  # opened meanwhile, perhaps in the epoch before
            return chunks + await self.clear(id)
        if left is None and not epoch:
            raise UnknownNamespace(f"namespace {id.hex()} is known neither to this daemon nor to its storage")
        if epoch and left is not None and self._unopened.get(id) is left:
            self._store.set_epoch_below(left["index"], epoch + 1)
        return chunks

    def list(self) -> tuple[NamespaceInfo, ...]:
        """All of them, in the order they were opened; then those with chunks that nobody has opened yet."""
        counted = self._counted()
        entries = self._entries | {
            id: _Entry(row["index"], row["chunk_bytes"], "{}", "(of an earlier daemon)")
            for id, row in self._unopened.items()
            if counted[row["index"]]["chunks"]
        }
        return tuple(self._info(id, entry, counted.get(entry.index, {})) for id, entry in entries.items())

    def _counted(self) -> dict[int, dict[str, Any]]:
        below = {} if self._storage is None else self._storage.namespaces()
        counted = {row["index"]: dict(row) for row in self._store.namespaces()}
        for index, row in below.items():
            of = counted.setdefault(index, {})
            of["storage"] = row["state"]
            of |= {f"storage_{name}": row[name] for name in row if name not in ("index", "state")}
        return counted

    def _info(self, id: bytes, entry: _Entry, row: dict[str, Any]) -> NamespaceInfo:
        counts = ("epoch", "chunks", "bytes", "hits", "misses", "stores", "evictions", "floor")
        return NamespaceInfo(
            id=id,
            index=entry.index,
            chunk_bytes=entry.chunk_bytes,
            fingerprint_json=entry.fingerprint_json,
            boot_id=self._boot_id,
            label=entry.label,
            **{name: row.get(name, 0) for name in counts},
            **{name: value for name, value in row.items() if name.startswith("storage")},
        )


def _mismatch(id: bytes, chunk_bytes: int, known_bytes: int) -> NamespaceMismatch:
    return NamespaceMismatch(
        f"chunk_bytes is {chunk_bytes}; namespace {id.hex()} is known with {known_bytes}"
    )
