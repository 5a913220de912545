"""SGLang plugin: HiCache where the device is the CPU.

SGLang moves KV between device and host pools by CUDA kernels. This puts indexed copies by torch in their
place, and takes out the pinning of host memory. All the rest (radix tree, controllers and their threads, host
pools, the storage factory) is SGLang's own.
"""

from collections.abc import Callable
from typing import Any

import torch

HOSTS = "sglang.srt.mem_cache.pool_host"
ATTENTION = "sglang.srt.models.deepseek_common"


def pages_of(pool: Any, buffer: torch.Tensor, layer: int) -> torch.Tensor:
    """One layer of a host buffer as (page, token in page, heads, head dim), whatever the layout: a view."""
    match pool.layout:
        case "layer_first":
            return buffer[layer].unflatten(0, (-1, pool.page_size))
        case "page_first":
            return buffer[:, layer].unflatten(0, (-1, pool.page_size))
        case "page_first_direct":
            return buffer[:, layer]
        case "page_head":
            return buffer[:, :, :, layer].transpose(1, 2)
    raise ValueError(f"no copies are known for the layout {pool.layout}")


def at(pool: Any, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Host token indices as (page, token in page)."""
    return indices // pool.page_size, indices % pool.page_size


def load_mha(
    pool: Any, _device_pool: Any, host: Any, device: Any, layer: int, _io: str, *, is_draft: bool = False
):
    if not is_draft and not 0 <= layer < pool.target_layer_num:
        return
    for buffer, rows in ((pool.k_buffer, pool.device_k_buffers), (pool.v_buffer, pool.device_v_buffers)):
        rows[layer][device] = pages_of(pool, buffer, layer)[at(pool, host)]


def store_mha(pool: Any, _device_pool: Any, host: Any, device: Any, _io: str):
    for buffer, rows in ((pool.k_buffer, pool.device_k_buffers), (pool.v_buffer, pool.device_v_buffers)):
        for layer in range(pool.layer_num):
            pages_of(pool, buffer, layer)[at(pool, host)] = rows[layer][device]


def load_mla(
    pool: Any, _device_pool: Any, host: Any, device: Any, layer: int, _io: str, *, is_draft: bool = False
):
    ours = pool._host_layer_by_controller.get(layer)
    if ours is not None:
        rows = pool.device_kv_buffers[pool._buffer_index_by_layer[layer]]
        rows[device] = pages_of(pool, pool.kv_buffer, ours)[at(pool, host)]


def store_mla(pool: Any, _device_pool: Any, host: Any, device: Any, _io: str):
    for layer in range(pool.layer_num):
        pages_of(pool, pool.kv_buffer, layer)[at(pool, host)] = pool.device_kv_buffers[layer][device]


def copy_state(src: Any, dst: Any, src_indices: Any, dst_indices: Any, *_: Any, **__: Any) -> None:
    dst[dst_indices] = src[src_indices]


def load_state(
    src: Any, dst: Any, src_indices: Any, dst_indices: Any, layer_id: int, *_: Any, **__: Any
) -> None:
    dst[dst_indices] = src[src_indices, layer_id, 0]


def store_states(
    src_layers: Any, dst: Any, src_indices: Any, dst_indices: Any, num_layers: int, *_: Any, **__: Any
):
    for layer in range(num_layers):
        dst[dst_indices, layer, 0] = src_layers[layer][src_indices]


def unpinned(*args: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, {**options, "pin_memory": False}


def absorbed_mla(original: Callable[..., Any], cls: Any, backend: str) -> Any:
    """torch's own attention reads the latent pool: of MLA it can do the absorbed form alone."""
    if backend != "torch_native":
        return original(cls, backend)
    from sglang.srt.models.deepseek_common.attention_forward_methods import AttnForwardMethod

    return lambda _layer, _batch: AttnForwardMethod.MLA


REPLACED: dict[str, Callable[..., Any]] = {
    # SGLang leaves 10 GiB free, which a test machine need not have; these pools are some MiB.
    "base.host_memory_budget_bytes": lambda *_args, **_options: 1 << 40,
    "common._cuda_host_register": lambda *_args, **_options: None,
    "mha.MHATokenToKVPoolHost.load_to_device_per_layer": load_mha,
    "mha.MHATokenToKVPoolHost.backup_from_device_all_layer": store_mha,
    "mla.MLATokenToKVPoolHost.load_to_device_per_layer": load_mla,
    "mla.MLATokenToKVPoolHost.backup_from_device_all_layer": store_mla,
    "mamba.MambaPoolHost._copy_tensor": copy_state,
    "mamba.MambaPoolHost._copy_tensor_pf_lf": load_state,
    "mamba.MambaPoolHost._copy_tensor_all_layers_lf_pf": store_states,
}


def activate() -> None:
    """The entry point of `sglang.srt.plugins`: called in every process of the engine."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name, replacement in REPLACED.items():
        HookRegistry.register(f"{HOSTS}.{name}", replacement, HookType.REPLACE)
    for name in ("base.HostKVCache", "mamba.MambaPoolHost"):
        HookRegistry.register(f"{HOSTS}.{name}.__init__", unpinned, HookType.BEFORE)
    registry = f"{ATTENTION}.attention_backend_handler.AttentionBackendRegistry.get_handler"
    HookRegistry.register(registry, absorbed_mla, HookType.AROUND)
