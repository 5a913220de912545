"""Messages of protos/kvtier/v1/kvtier.proto <-> values of kvtier.types, one pair of functions each."""

from typing import Final

import kvtier.wire._gen.kvtier_pb2 as pb
from kvtier.types import AttachGrant, ChunkInfo, DaemonStats, FormerSession, NamespaceInfo, SessionInfo

ERROR_KIND_METADATA: Final = "kvtier-error"
"""Trailing metadata of a failed call: the class name in kvtier.errors."""

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Both ways, one message. A batch of 16 K keys of 64 bytes fits."""


def attach_to_proto(value: AttachGrant) -> pb.AttachReply:
    """AttachGrant -> message."""
    return pb.AttachReply(
        protocol_version=value.protocol_version,
        boot_id=value.boot_id,
        session=value.session,
        token=value.token,
        session_socket=value.session_socket,
    )


def attach_from_proto(message: pb.AttachReply) -> AttachGrant:
    """Message -> AttachGrant."""
    return AttachGrant(
        protocol_version=message.protocol_version,
        boot_id=message.boot_id,
        session=message.session,
        token=message.token,
        session_socket=message.session_socket,
    )


def former_to_proto(value: FormerSession) -> pb.FormerSession:
    """FormerSession -> message."""
    return pb.FormerSession(
        boot_id=value.boot_id, session=value.session, held=value.held, copies=value.copies
    )


def former_from_proto(message: pb.FormerSession) -> FormerSession:
    """Message -> FormerSession."""
    return FormerSession(
        boot_id=message.boot_id,
        session=message.session,
        held=tuple(message.held),
        copies=message.copies,
    )


_NAMESPACE_FIELDS = tuple(NamespaceInfo.__dataclass_fields__)
_SESSION_FIELDS = tuple(SessionInfo.__dataclass_fields__)
_CHUNK_FIELDS = tuple(ChunkInfo.__dataclass_fields__)


def namespace_to_proto(value: NamespaceInfo) -> pb.Namespace:
    """NamespaceInfo -> message (the field names are the same)."""
    return pb.Namespace(**{name: getattr(value, name) for name in _NAMESPACE_FIELDS})


def namespace_from_proto(message: pb.Namespace) -> NamespaceInfo:
    """Message -> NamespaceInfo."""
    return NamespaceInfo(**{name: getattr(message, name) for name in _NAMESPACE_FIELDS})


def session_to_proto(value: SessionInfo) -> pb.SessionInfo:
    """SessionInfo -> message."""
    return pb.SessionInfo(**{name: getattr(value, name) for name in _SESSION_FIELDS})


def session_from_proto(message: pb.SessionInfo) -> SessionInfo:
    """Message -> SessionInfo."""
    return SessionInfo(**{name: getattr(message, name) for name in _SESSION_FIELDS})


def chunk_to_proto(value: ChunkInfo) -> pb.Chunk:
    """ChunkInfo -> message."""
    return pb.Chunk(**{name: getattr(value, name) for name in _CHUNK_FIELDS})


def chunk_from_proto(message: pb.Chunk) -> ChunkInfo:
    """Message -> ChunkInfo."""
    return ChunkInfo(**{name: getattr(message, name) for name in _CHUNK_FIELDS})


def stats_to_proto(value: DaemonStats) -> pb.StatsReply:
    """DaemonStats -> message."""
    return pb.StatsReply(
        boot_id=value.boot_id,
        version=value.version,
        uptime_s=value.uptime_s,
        counters=value.counters,
        namespaces=map(namespace_to_proto, value.namespaces),
        sessions=map(session_to_proto, value.sessions),
        storage=value.storage,
    )


def stats_from_proto(message: pb.StatsReply) -> DaemonStats:
    """Message -> DaemonStats."""
    return DaemonStats(
        boot_id=message.boot_id,
        version=message.version,
        uptime_s=message.uptime_s,
        counters=dict(message.counters),
        namespaces=tuple(map(namespace_from_proto, message.namespaces)),
        sessions=tuple(map(session_from_proto, message.sessions)),
        storage=message.storage,
    )
