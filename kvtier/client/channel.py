"""The control channel: gRPC to the daemon. The only importer of grpc on the client's side.

A call costs some hundred microseconds, so none of these is on an engine's hot path.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

import kvtier.wire._gen.kvtier_pb2 as pb
import kvtier.wire._gen.kvtier_pb2_grpc as pb_grpc
from kvtier.address import Address, parse_address
from kvtier.errors import DaemonUnavailable, InternalError, InvalidArgument, KVTierError, by_kind
from kvtier.io.tls import client_tls
from kvtier.types import (
    PROTOCOL_VERSION,
    AttachGrant,
    ChunkInfo,
    DaemonStats,
    FormerSession,
    NamespaceInfo,
    SessionInfo,
)
from kvtier.wire import codec

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),  # a host's proxy setting must not send local calls elsewhere
    ("grpc.use_local_subchannel_pool", 1),  # its own connection: closing this channel closes it
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5000),  # the least a handshake may take: busy is not absent
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", codec.MESSAGE_BYTES_MAX),
]

_Message = TypeVar("_Message")
_Reply = TypeVar("_Reply")


class ControlChannel:
    """Typed control calls. Thread-safe. Each waits at most `timeout_s`, which may be changed between calls.

    Every call raises DaemonUnavailable when no daemon answers in time, else the KVTierError that the daemon
    named. Usable as a context manager.
    """

    def __init__(self, address: str, *, timeout_s: float = 5.0) -> None:
        """No connection is made before the first call.

        InvalidArgument: neither unix:PATH nor HOST:PORT, or a host beyond this one without TLS; ConfigError:
        a file of TLS cannot be used (see kvtier/io/tls.py).
        """
        parsed = parse_address(address)
        self.address = str(parsed)
        self.timeout_s = timeout_s
        self._channel = _open(parsed)
        self._stub = pb_grpc.ControlStub(self._channel)

    def close(self) -> None:
        """End the connection; calls under way fail with DaemonUnavailable."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_reachable(self, timeout_s: float) -> bool:
        """Until a daemon answers at the address, at most `timeout_s`; True when it does."""
        try:
            self._call(
                self._stub.ListSessions, pb.ListSessionsRequest(), timeout_s=timeout_s, wait_for_ready=True
            )
        except DaemonUnavailable:
            return False
        return True

    # ---- an engine's attach ----

    def attach(
        self,
        client: str,
        group: str,
        *,
        former: FormerSession | None = None,
        protocol_version: int = PROTOCOL_VERSION,
    ) -> AttachGrant:
        """Ask for a session of this process; its token is good once and for ten seconds."""
        request = pb.AttachRequest(
            protocol_version=protocol_version,
            client=client,
            pid=os.getpid(),
            group=group,
            former=None if former is None else codec.former_to_proto(former),
        )
        return codec.attach_from_proto(self._call(self._stub.Attach, request))

    def open_namespace(
        self, fingerprint_json: str, chunk_bytes: int, label: str = "", epoch_below: int = 0
    ) -> NamespaceInfo:
        """The namespace of a canonical fingerprint, made if new; NamespaceMismatch when it does not fit."""
        request = pb.OpenNamespaceRequest(
            fingerprint_json=fingerprint_json, chunk_bytes=chunk_bytes, label=label, epoch_below=epoch_below
        )
        return codec.namespace_from_proto(self._call(self._stub.OpenNamespace, request))

    # ---- observation ----

    def daemon_stats(self) -> DaemonStats:
        """Everything the daemon counts."""
        return codec.stats_from_proto(self._call(self._stub.Stats, pb.StatsRequest()))

    def stats(self) -> dict[str, Any]:
        """The same as plain values that JSON can carry (ids as hexadecimal text)."""
        return stats_record(self.daemon_stats())

    def list_namespaces(self) -> list[NamespaceInfo]:
        """Every namespace of this boot."""
        reply = self._call(self._stub.ListNamespaces, pb.ListNamespacesRequest())
        return [codec.namespace_from_proto(item) for item in reply.namespaces]

    def list_sessions(self) -> list[SessionInfo]:
        """Every session that is alive, or whose leases are not all back."""
        reply = self._call(self._stub.ListSessions, pb.ListSessionsRequest())
        return [codec.session_from_proto(item) for item in reply.sessions]

    def list_chunks(
        self, namespace_id: bytes, *, after_slot: int | None = None, limit: int = 1000
    ) -> list[ChunkInfo]:
        """Chunks of a namespace in slot order, those behind `after_slot`, at most `limit`."""
        request = pb.ListChunksRequest(namespace_id=namespace_id, after_slot=after_slot, limit=limit)
        reply = self._call(self._stub.ListChunks, request)
        return [codec.chunk_from_proto(item) for item in reply.chunks]

    # ---- administration ----

    def clear_namespace(self, namespace_id: bytes) -> int:
        """Make all its chunks unreadable; returns how many there were."""
        return int(self._call(self._stub.ClearNamespace, pb.ClearNamespaceRequest(id=namespace_id)).chunks)

    def evict(self, namespace_id: bytes, bytes: int) -> int:
        """Evict unpinned chunks of a namespace, about `bytes`; returns how many bytes went."""
        request = pb.EvictRequest(namespace_id=namespace_id, bytes=bytes)
        return int(self._call(self._stub.Evict, request).bytes)

    def set_floor(self, namespace_id: bytes, bytes: int) -> None:
        """What others leave of the arena to this namespace; InvalidArgument when it does not fit."""
        self._call(self._stub.SetFloor, pb.SetFloorRequest(namespace_id=namespace_id, bytes=bytes))

    def drain(self, deadline_s: float) -> int:
        """No new leases from now on; waits until none is left, or the deadline. Returns how many are left."""
        request = pb.DrainRequest(deadline_s=deadline_s)
        reply = self._call(self._stub.Drain, request, timeout_s=deadline_s + self.timeout_s)
        return int(reply.leases_left)

    def flush(self, deadline_s: float) -> bool:
        """Wait until what was committed so far is on storage or dropped; False: not in time."""
        request = pb.FlushRequest(deadline_s=deadline_s)
        return bool(self._call(self._stub.Flush, request, timeout_s=deadline_s + self.timeout_s).done)

    # ---- the hot calls, for a tool that has no shared memory ----

    def open_session(self, client: str) -> "ToolSession":
        """A session without shared memory; it lives until its `close`, or until this process ends."""
        request = pb.SessionRequest(protocol_version=PROTOCOL_VERSION, client=client)
        events = self._stub.Session(request)
        overdue = threading.Timer(self.timeout_s, events.cancel)  # the stream itself may have no deadline
        overdue.start()
        try:
            event = next(events)
        except (grpc.RpcError, StopIteration) as error:
            raise self._translated(error, self.timeout_s) from None
        finally:
            overdue.cancel()
        return ToolSession(self, event.session, events)

    def _call(
        self,
        method: Callable[..., _Reply],
        request: _Message,
        *,
        timeout_s: float | None = None,
        wait_for_ready: bool = False,
    ) -> _Reply:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            return method(request, timeout=limit_s, wait_for_ready=wait_for_ready)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed beside us
            raise self._translated(error, limit_s) from None

    def _translated(self, error: Exception, limit_s: float) -> KVTierError:
        if not isinstance(error, grpc.Call):
            return DaemonUnavailable(f"{self.address}: {error or 'the stream ended'}")
        for name, value in error.trailing_metadata() or ():
            if name == codec.ERROR_KIND_METADATA and isinstance(value, str):
                return by_kind(value, error.details() or value)
        code = error.code()
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            why = (error.details() or code.name).rpartition("error: ")[2]  # without how gRPC came to it
            return DaemonUnavailable(f"no daemon answers at {self.address} ({why})")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DaemonUnavailable(f"the daemon at {self.address} did not answer in {limit_s:g} s")
        return InternalError(f"{self.address}: {code.name}: {error.details()}")


def _open(address: Address) -> grpc.Channel:
    tls = client_tls() if address.path is None else None
    if tls is not None:
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key or None, tls.cert or None)
        return grpc.secure_channel(address.grpc_target, credentials, options=_OPTIONS)
    if not address.is_loopback:
        raise InvalidArgument(
            f"address is '{address}', beyond this host: set KVTIER_TLS_CA, there is TLS only"
        )
    return grpc.insecure_channel(address.grpc_target, options=_OPTIONS)


class ToolSession:
    """The hot calls that read, over gRPC, for tools and tests. It sees no payload."""

    def __init__(self, control: ControlChannel, session: int, events: Any) -> None:
        self.session = session
        self._control = control
        self._stub = control._stub
        self._events = events

    def lookup(self, namespace_id: bytes, keys: Iterable[bytes]) -> int:
        """Leading keys that are readable."""
        return int(self._control._call(self._stub.Lookup, self._keys(namespace_id, keys)).chunks)

    def lookup_tiers(self, namespace_id: bytes, keys: Iterable[bytes]) -> pb.LookupReply:
        """The same, by tier."""
        return self._control._call(self._stub.Lookup, self._keys(namespace_id, keys))

    def prefetch(self, namespace_id: bytes, keys: Iterable[bytes]) -> int:
        """Bring chunks from storage to DRAM; how many are on their way."""
        return int(self._control._call(self._stub.Prefetch, self._keys(namespace_id, keys)).promoting)

    def lease(self, namespace_id: bytes, keys: Iterable[bytes]) -> pb.LeaseReply:
        """Pin the leading keys that are there."""
        return self._control._call(self._stub.Lease, self._keys(namespace_id, keys))

    def touch(self, namespace_id: bytes, keys: Iterable[bytes]) -> None:
        """Mark as used."""
        self._control._call(self._stub.Touch, self._keys(namespace_id, keys))

    def release(self, lease: int) -> None:
        """Give a read lease back."""
        self._control._call(self._stub.Release, pb.LeaseRequest(session=self.session, lease=lease))

    def close(self) -> None:
        """End the session; its leases go back."""
        with suppress(grpc.RpcError):
            self._events.cancel()

    def _keys(self, namespace_id: bytes, keys: Iterable[bytes]) -> pb.KeysRequest:
        return pb.KeysRequest(session=self.session, namespace_id=namespace_id, keys=keys)


def stats_record(stats: DaemonStats) -> dict[str, Any]:
    """DaemonStats as plain values that JSON can carry."""

    def plain(value: NamespaceInfo | SessionInfo) -> dict[str, Any]:
        fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return {name: item.hex() if isinstance(item, bytes) else item for name, item in fields.items()}

    namespaces = [plain(item) for item in stats.namespaces]
    for item in namespaces:
        item["fingerprint"] = json.loads(item.pop("fingerprint_json"))
    return {
        "boot_id": f"{stats.boot_id:016x}",
        "version": stats.version,
        "uptime_s": stats.uptime_s,
        "storage": stats.storage,
        "counters": dict(stats.counters),
        "namespaces": namespaces,
        "sessions": [plain(item) for item in stats.sessions],
    }
