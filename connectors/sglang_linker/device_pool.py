"""SGLang's device pool as the copy engine sees it: a page of the whole, and of each layer.

A slot holds a page's layers one after another, so that a load can bring them one by one, in the order in
which the forward pass reads them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtier_connectors.sglang_hicache.pools import PoolLayout, Region, UnsupportedPool

# Device pool classes whose pages are known to be whole when these buffers are copied. A subclass may keep
# more beside them, so the class must be the very one.
KNOWN_POOLS: Mapping[str, tuple[str, ...]] = {
    "MHATokenToKVPool": ("k_buffer", "v_buffer"),
    "MLATokenToKVPool": ("kv_buffer",),
}

# Of pools that keep them, these hold what belongs to a page and is not copied.
_SCALES = ("k_scale_buffer", "native_k_scale_buffer", "kv_scale_buffer")

_SHAPE_FIELDS = ("head_num", "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim")


@dataclass(frozen=True)
class DevicePool:
    """Immutable, so threads share it."""

    page: PoolLayout  # all layers
    layers: tuple[PoolLayout, ...]  # the same by layer
    replicated: bool  # the same on every tensor-parallel rank
    device: Any  # torch's


def device_pool(params: Any, components: Collection[Any]) -> DevicePool:
    """Of SGLang's cache parameters. UnsupportedPool when its pages are not known to be stored whole."""
    others = sorted(component.name for component in components if component.name != "FULL")
    if others:
        raise UnsupportedPool(f"models with {' and '.join(others)} beside full attention are not supported")
    if params.mtp_draft_device_pools or params.sidecar_draft_device_pools:
        raise UnsupportedPool("the KV cache of a draft model is not supported")
    return pool_of(params.token_to_kv_pool_allocator.get_kvcache(), int(params.page_size))


def pool_of(pool: Any, page_tokens: int) -> DevicePool:
    """Of the KV pool itself."""
    kind = type(pool).__name__
    if kind not in KNOWN_POOLS:
        raise UnsupportedPool(
            f"KV pool of class {kind} is not supported; supported are {', '.join(KNOWN_POOLS)}"
        )
    if any(getattr(pool, name, None) is not None for name in _SCALES):
        raise UnsupportedPool("a KV cache with scales beside it is not supported")
    if (layout := getattr(pool, "kv_cache_layout", "nhd")) != "nhd":
        raise UnsupportedPool(f"KV pool has the layout {layout!r}; supported is 'nhd'")
    buffers = [getattr(pool, name) for name in KNOWN_POOLS[kind]]
    pages = min(tensor.shape[0] for group in buffers for tensor in group) // page_tokens
    layers: list[PoolLayout] = []
    offset = 0
    for number, tensors in enumerate(zip(*buffers, strict=True)):
        regions = tuple(_region(tensor, page_tokens) for tensor in tensors)
        page_bytes = sum(size for _, _, size in regions)
        layers.append(PoolLayout(f"kv/{number}", regions, pages, page_tokens, page_bytes, {}, offset))
        offset += page_bytes
    regions = tuple(region for layer in layers for region in layer.regions)
    page = PoolLayout("kv", regions, pages, page_tokens, offset, _record(pool, page_tokens, regions))
    return DevicePool(page, tuple(layers), kind == "MLATokenToKVPool", buffers[0][0].device)


def _region(tensor: Any, page_tokens: int) -> Region:
    token = tensor[0]
    token_bytes = token.numel() * token.element_size()
    if not token.is_contiguous() or tensor.stride(0) * tensor.element_size() != token_bytes:
        raise UnsupportedPool("the tokens of a page do not lie one after another in the KV pool")
    return tensor.data_ptr(), page_tokens * token_bytes, page_tokens * token_bytes


def _record(pool: Any, page_tokens: int, regions: Sequence[Region]) -> dict[str, Any]:
    """All that says how a page's bytes are laid out."""
    shapes = {name: int(getattr(pool, name)) for name in _SHAPE_FIELDS if hasattr(pool, name)}
    return {
        "pool": "kv",
        "class": type(pool).__name__,
        "page_tokens": page_tokens,
        "dtype": str(pool.dtype),
        "store_dtype": str(pool.store_dtype),
        "start_layer": int(pool.start_layer),
        "layer_num": int(pool.layer_num),
        "region_bytes": [size for _, _, size in regions],
        **shapes,
    }
