"""The one door to the native module."""

from tpu_sync_native import (
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
