"""The native heart: shared index, slots and leases, per-session rings, and the device copy engine."""

from tpu_sync_native._core import (
    POLICIES,
    CopyEngine,
    DaemonLost,
    ReadGrant,
    Session,
    SlotRefs,
    Store,
    WriteGrant,
    build_info,
    catalog_make_empty,
    copy_reference,
    ring_bytes,
)

__all__ = [
    "POLICIES",
    "CopyEngine",
    "DaemonLost",
    "ReadGrant",
    "Session",
    "SlotRefs",
    "Store",
    "WriteGrant",
    "build_info",
    "catalog_make_empty",
    "copy_reference",
    "ring_bytes",
]
