"""kvtier: KV cache of LLM engines in tiers, one daemon per host.

    from kvtier import Client
    with Client.connect() as client:
        ns = client.namespace({"model": "m", "revision": "r"}, chunk_bytes=2 << 20)
        hit = ns.lookup(keys)

This module is the whole public face. Names load on first use, so that importing it costs nothing and
needs neither the native module nor gRPC (an engine's plug-in scan imports every plug-in it finds).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtier.client.client import Client
    from kvtier.client.devices import CudaDevice, Device, HostDevice, PjrtDevice, buffer_address
    from kvtier.client.leases import ReadLease, WriteLease
    from kvtier.client.namespace import Namespace
    from kvtier.client.torch_tpu import TorchTpuTensors
    from kvtier.client.values import Grant, Hit, SlotGrants, SlotLease
    from kvtier.errors import (
        ChunkNotReady,
        ConfigError,
        DaemonUnavailable,
        Draining,
        InternalError,
        InvalidArgument,
        KVTierError,
        LeaseExpired,
        LimitReached,
        NamespaceMismatch,
        PermissionRefused,
        ProtocolMismatch,
        UnknownLease,
    )
    from kvtier.io.native import CopyEngine

_HOME = {
    "ChunkNotReady": "kvtier.errors",
    "Client": "kvtier.client.client",
    "ConfigError": "kvtier.errors",
    "CopyEngine": "kvtier.io.native",
    "CudaDevice": "kvtier.client.devices",
    "DaemonUnavailable": "kvtier.errors",
    "Device": "kvtier.client.devices",
    "Draining": "kvtier.errors",
    "Grant": "kvtier.client.values",
    "Hit": "kvtier.client.values",
    "HostDevice": "kvtier.client.devices",
    "InternalError": "kvtier.errors",
    "InvalidArgument": "kvtier.errors",
    "KVTierError": "kvtier.errors",
    "LeaseExpired": "kvtier.errors",
    "LimitReached": "kvtier.errors",
    "Namespace": "kvtier.client.namespace",
    "NamespaceMismatch": "kvtier.errors",
    "PermissionRefused": "kvtier.errors",
    "PjrtDevice": "kvtier.client.devices",
    "ProtocolMismatch": "kvtier.errors",
    "ReadLease": "kvtier.client.leases",
    "SlotGrants": "kvtier.client.values",
    "SlotLease": "kvtier.client.values",
    "TorchTpuTensors": "kvtier.client.torch_tpu",
    "UnknownLease": "kvtier.errors",
    "WriteLease": "kvtier.client.leases",
    "buffer_address": "kvtier.client.devices",
}

__all__ = [
    "ChunkNotReady",
    "Client",
    "ConfigError",
    "CopyEngine",
    "CudaDevice",
    "DaemonUnavailable",
    "Device",
    "Draining",
    "Grant",
    "Hit",
    "HostDevice",
    "InternalError",
    "InvalidArgument",
    "KVTierError",
    "LeaseExpired",
    "LimitReached",
    "Namespace",
    "NamespaceMismatch",
    "PermissionRefused",
    "PjrtDevice",
    "ProtocolMismatch",
    "ReadLease",
    "SlotGrants",
    "SlotLease",
    "TorchTpuTensors",
    "UnknownLease",
    "WriteLease",
    "buffer_address",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kvtier' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
