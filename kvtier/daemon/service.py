"""The control plane: decode, call, encode. Every rule lives in the objects it calls."""

# ruff: noqa: D102 - the calls are documented where they are promised, in the .proto file

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc

import kvtier.wire._gen.kvtier_pb2 as pb
import kvtier.wire._gen.kvtier_pb2_grpc as pb_grpc
from kvtier.daemon.faults import Context, stream, unary
from kvtier.daemon.namespaces import Namespaces
from kvtier.daemon.sessions import Sessions
from kvtier.errors import InvalidArgument, ProtocolMismatch, UnknownLease
from kvtier.io.fdpass import HELD_MAX
from kvtier.io.native import SlotRefs, Store
from kvtier.types import KEY_BYTES_MAX, KEY_BYTES_MIN, PROTOCOL_VERSION, ChunkInfo, DaemonStats
from kvtier.wire import codec

KEYS_MAX: Final = 16_384
CHUNKS_LISTED_MAX: Final = 10_000
STATES: Final = ("free", "reserved", "committed", "quarantined", "promoting")
"""Of a slot, by its number in the native store."""
SERVICE_NAME: Final = str(pb.DESCRIPTOR.services_by_name["Control"].full_name)


class Service:
    """Control of protos/kvtier/v1/kvtier.proto; see there for what each call promises."""

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        namespaces: Namespaces,
        *,
        stats: Callable[[], DaemonStats],
        drain: Callable[[float], Awaitable[int]],
        flush: Callable[[float], Awaitable[bool]],
    ) -> None:
        """`drain`: seconds -> leases that are left. `flush`: seconds -> whether all is done."""
        self._store = store
        self._sessions = sessions
        self._namespaces = namespaces
        self._stats = stats
        self._drain = drain
        self._flush = flush

    # ---- engines ----

    @unary
    async def Attach(self, request: pb.AttachRequest, context: Context) -> pb.AttachReply:
        _check_version(request.protocol_version)
        if len(request.former.held) > HELD_MAX:
            raise InvalidArgument(
                f"{len(request.former.held)} leases are held; at most {HELD_MAX} can be named"
            )
        former = codec.former_from_proto(request.former) if request.HasField("former") else None
        grant = self._sessions.grant(request.client, request.pid, request.group, former)
        return codec.attach_to_proto(grant)

    @stream
    async def Session(self, request: pb.SessionRequest, context: Context) -> AsyncIterator[pb.SessionEvent]:
        _check_version(request.protocol_version)
        session = self._sessions.open_plain(request.client)
        try:
            yield pb.SessionEvent(session=session, boot_id=self._stats().boot_id)
            await asyncio.get_running_loop().create_future()  # until the client or the daemon ends the call
        finally:
            self._sessions.close_plain(session)

    @unary
    async def OpenNamespace(self, request: pb.OpenNamespaceRequest, context: Context) -> pb.Namespace:
        info = self._namespaces.open(
            request.fingerprint_json, request.chunk_bytes, request.label, request.epoch_below
        )
        await self._namespaces.settle(info.id)
        if self._namespaces.contradicts(info.id, request.epoch_below):
            await self._namespaces.clear(info.id)
        return codec.namespace_to_proto(info)

    @unary
    async def ClearNamespace(
        self, request: pb.ClearNamespaceRequest, context: Context
    ) -> pb.ClearNamespaceReply:
        return pb.ClearNamespaceReply(chunks=await self._namespaces.clear(request.id))

    # ---- tools ----

    @unary
    async def ListNamespaces(
        self, request: pb.ListNamespacesRequest, context: Context
    ) -> pb.ListNamespacesReply:
        return pb.ListNamespacesReply(namespaces=map(codec.namespace_to_proto, self._namespaces.list()))

    @unary
    async def ListChunks(self, request: pb.ListChunksRequest, context: Context) -> pb.ListChunksReply:
        if request.limit > CHUNKS_LISTED_MAX:
            raise InvalidArgument(f"limit is {request.limit}; at most {CHUNKS_LISTED_MAX} are allowed")
        index = self._namespaces.index(request.namespace_id)
        after = request.after_slot if request.HasField("after_slot") else None
        rows = await asyncio.to_thread(self._store.list_chunks, index, after, request.limit or 1000)
        chunks = (ChunkInfo(**row | {"state": STATES[row["state"]]}) for row in rows)
        return pb.ListChunksReply(chunks=map(codec.chunk_to_proto, chunks))

    @unary
    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsReply:
        return pb.ListSessionsReply(sessions=map(codec.session_to_proto, self._sessions.list()))

    @unary
    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsReply:
        return codec.stats_to_proto(self._stats())

    @unary
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        if not 0 <= request.deadline_s <= 3600:
            raise InvalidArgument(f"deadline_s is {request.deadline_s}; 0 to 3600 are allowed")
        return pb.DrainReply(leases_left=await self._drain(request.deadline_s))

    @unary
    async def Flush(self, request: pb.FlushRequest, context: Context) -> pb.FlushReply:
        if not 0 <= request.deadline_s <= 3600:
            raise InvalidArgument(f"deadline_s is {request.deadline_s}; 0 to 3600 are allowed")
        return pb.FlushReply(done=await self._flush(request.deadline_s))

    @unary
    async def Evict(self, request: pb.EvictRequest, context: Context) -> pb.EvictReply:
        index = self._namespaces.index(request.namespace_id)
        return pb.EvictReply(bytes=await asyncio.to_thread(self._store.evict, index, request.bytes))

    @unary
    async def SetFloor(self, request: pb.SetFloorRequest, context: Context) -> pb.Empty:
        self._namespaces.set_floor(request.namespace_id, request.bytes)
        return pb.Empty()

    # ---- the hot calls that read, for tools ----

    @unary
    async def Lookup(self, request: pb.KeysRequest, context: Context) -> pb.LookupReply:
        index = self._namespaces.index(request.namespace_id)
        chunks, host_chunks = self._store.lookup_tiers(index, _keys(request))
        return pb.LookupReply(chunks=chunks, host_chunks=host_chunks, storage_chunks=chunks - host_chunks)

    @unary
    async def Lease(self, request: pb.KeysRequest, context: Context) -> pb.LeaseReply:
        grant = self._store.lease(*self._batch(request))
        return pb.LeaseReply(lease=grant.lease, slots=_slots(grant.refs))

    @unary
    async def Touch(self, request: pb.KeysRequest, context: Context) -> pb.Empty:
        self._store.touch(*self._batch(request))
        return pb.Empty()

    @unary
    async def Prefetch(self, request: pb.KeysRequest, context: Context) -> pb.PrefetchReply:
        _, index, keys = self._batch(request)
        return pb.PrefetchReply(promoting=self._store.prefetch(index, keys))

    @unary
    async def Release(self, request: pb.LeaseRequest, context: Context) -> pb.Empty:
        session = self._sessions.require_plain(request.session)
        with _known_lease():
            self._store.release(session, request.lease)
        return pb.Empty()

    def _batch(self, request: pb.KeysRequest) -> tuple[int, int, list[bytes]]:
        session = self._sessions.require_plain(request.session)
        return session, self._namespaces.index(request.namespace_id), _keys(request)


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"the client speaks protocol version {version}, this daemon {PROTOCOL_VERSION}; "
            "install the same kvtier on both sides"
        )


def _keys(request: pb.KeysRequest) -> list[bytes]:
    keys = list(request.keys)
    if len(keys) > KEYS_MAX:
        raise InvalidArgument(f"the batch has {len(keys)} keys; at most {KEYS_MAX} are allowed")
    for position, key in enumerate(keys):
        if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
            raise InvalidArgument(
                f"keys[{position}] has {len(key)} bytes; {KEY_BYTES_MIN} to {KEY_BYTES_MAX} are allowed"
            )
    return keys


@contextmanager
def _known_lease() -> Iterator[None]:
    """The native store refuses with ValueError; one about the lease is an UnknownLease."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith("lease "):
            raise UnknownLease(str(error)) from None
        raise


def _slots(refs: SlotRefs) -> list[Any]:
    rows: Sequence[Any] = (refs.slots, refs.generations, refs.offsets)
    return [
        pb.SlotRef(slot=slot, generation=generation, offset=offset)
        for slot, generation, offset in zip(*(row.tolist() for row in rows), strict=True)
    ]


def add_to(server: grpc.aio.Server, service: Service) -> str:
    """Register with a server; the service's full name."""
    pb_grpc.add_ControlServicer_to_server(service, server)
    return SERVICE_NAME
