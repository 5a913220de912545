"""The native heart: shared index, slots and leases, per-session rings, and the device copy engine."""

from tpu_sync_native._core import (
    CopyEngine,
    DaemonLost,
    Session,
    Store,
    build_info,
)

__all__ = ["CopyEngine", "DaemonLost", "Session", "Store", "build_info"]
