"""Which attention kernels write the pages: only the workers know, and the scheduler names the namespaces.

vLLM chooses a backend, and on CPUs an instruction set, per layer, from more than the configuration says. Two
backends may order the bytes of a page differently, so the choice itself goes into the fingerprint. It travels
by vLLM's handshake, once, after the workers are ready and before the first request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata


@dataclass
class KernelReport(KVConnectorHandshakeMetadata):
    """Of one worker: layer name -> its kernels, in words."""

    layers: dict[str, str] = field(default_factory=dict)


def kernels_of(layers: Mapping[str, Any]) -> dict[str, str]:
    """Layers that keep KV -> backend and instruction set. layers: `static_forward_context` of a worker."""
    found = {}
    for name, layer in layers.items():
        chosen = getattr(layer, "get_attn_backend", None)
        if chosen is None:
            continue
        backend = chosen()
        words = f"{backend.__module__}.{backend.__qualname__}"
        isa = getattr(layer, "isa", None)  # set by the CPU backends
        found[name] = f"{words} {isa}" if isa else words
    return found


def merged(reports: Iterable[Any]) -> dict[str, str]:
    """The reports of all workers as one; reports of other connectors are passed over."""
    words: dict[str, set[str]] = {}
    for report in reports:
        if isinstance(report, KernelReport):
            for layer, kernels in report.layers.items():
                words.setdefault(layer, set()).add(kernels)
    return {layer: " | ".join(sorted(kernels)) for layer, kernels in words.items()}
