"""The native heart: shared index, slots and leases, per-session rings, and the device copy engine."""

from tpu_sync_native._core import *  # noqa: F403 - replaced by names as the parts land
from tpu_sync_native._core import build_info, ring_bytes

__all__ = ["build_info", "ring_bytes"]
