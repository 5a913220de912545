"""The one door to the native module."""

from tpu_sync_native._core import POLICIES, ReadGrant, SlotRefs, WriteGrant, ring_bytes

from tpu_sync_native import CopyEngine, DaemonLost, Session, Store, build_info

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
    "ring_bytes",
]
