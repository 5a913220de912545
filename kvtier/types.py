"""Frozen values that cross layers. Bytes and counts are plain integers; units stand last in the names."""

from dataclasses import dataclass, field
from typing import Final

PROTOCOL_VERSION: Final = 3
"""Of the shared memory and the ring. A daemon refuses a client of another one."""

KEY_BYTES_MIN: Final = 16
KEY_BYTES_MAX: Final = 64
NAMESPACE_ID_BYTES: Final = 16
TOKEN_BYTES: Final = 32
UNCONFIRMED_CLEAR: Final = 1 << 63
"""In what a process remembers of a namespace (`Session.epoch_below`): storage has not confirmed a clear."""


@dataclass(frozen=True, slots=True)
class AttachGrant:
    """The daemon's half of an attach: go to `session_socket` with `token` within ten seconds."""

    protocol_version: int
    boot_id: int
    session: int
    token: bytes
    session_socket: str


@dataclass(frozen=True, slots=True)
class FormerSession:
    """What a process says of its last session, to a daemon that may have taken over its slots.

    held: write leases of that session that it may still be writing under; it knows of no others. copies: it
    may also write under leases of other sessions of its group.
    """

    boot_id: int
    session: int
    held: tuple[int, ...]
    copies: bool


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """One namespace as the daemon counts it. `index` is valid for the boot `boot_id` only.

    `label` is for people; the fingerprint alone says what the namespace is. `floor`: bytes of the arena that
    other namespaces leave to this one. `storage_codec`: of new records;
    where it is found out, `storage_codec_tried` is what came out best at the last look ("" before the first),
    with its share of a chunk's bytes, and its times to write and to read over those of a raw chunk.
    """

    id: bytes
    index: int
    chunk_bytes: int
    epoch: int
    fingerprint_json: str
    boot_id: int = 0
    chunks: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    stores: int = 0
    evictions: int = 0
    floor: int = 0
    label: str = ""
    storage: str = ""
    storage_records: int = 0
    storage_bytes: int = 0
    storage_hosts: int = 0
    storage_codec: str = ""
    storage_codec_tried: str = ""
    storage_codec_share: float = 0.0
    storage_codec_write: float = 0.0
    storage_codec_read: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One engine process's life with the daemon."""

    session: int
    client: str
    pid: int
    group: str
    age_s: float
    read_leases: int = 0
    write_leases: int = 0
    pinned_slots: int = 0
    reserved_slots: int = 0


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """One chunk of a namespace; `offset` counts bytes into the arena."""

    key: bytes
    slot: int
    generation: int
    pins: int
    offset: int
    state: str


@dataclass(frozen=True, slots=True)
class DaemonStats:
    """Everything `kvtier stats` shows. `counters` are named in kvtier/metrics.py.

    `storage` is its state in words ("ok", "full: ...", "down: ..."), empty without storage.
    """

    boot_id: int
    version: str
    uptime_s: float
    counters: dict[str, int] = field(default_factory=dict)
    namespaces: tuple[NamespaceInfo, ...] = ()
    sessions: tuple[SessionInfo, ...] = ()
    storage: str = ""
