"""A host pool of SGLang as the copy engine sees it: where the regions of each page lie.

The pool itself says where a page is (`get_page_buffer_meta`). It is asked for three pages when it is
registered; from these follow every region's first address and stride, so that a copy of any number of pages
is one call of the native engine, which is told page numbers and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")

# Pool name -> the host pool classes whose pages are known to be whole when these regions are copied. A
# subclass may keep more beside them (scales, indexes), so the class must be the very one.
KNOWN_POOLS: Mapping[str, frozenset[str]] = {
    "kv": frozenset({"MHATokenToKVPoolHost", "MLATokenToKVPoolHost"}),
    "swa": frozenset({"MHATokenToKVPoolHost"}),
    "mamba": frozenset({"MambaPoolHost"}),
}

# What describes a page's inside, of whichever of these a pool has. All are plain numbers or shapes.
_SHAPE_FIELDS = (
    "conv_state_shapes",
    "end_layer",
    "head_dim",
    "head_group_num",
    "head_num",
    "kv_cache_dim",
    "kv_lora_rank",
    "layer_num",
    "num_mamba_layers",
    "qk_rope_head_dim",
    "start_layer",
    "target_layer_num",
    "temporal_state_shape",
    "v_head_dim",
)
_TYPE_FIELDS = ("dtype", "conv_dtype", "temporal_dtype")

Region = tuple[int, int, int]  # address of page 0, bytes between pages, bytes of a page


class UnsupportedPool(ValueError):
    """This pool cannot be stored; the message says which, and why."""


@dataclass(frozen=True)
class PoolLayout:
    """One registered pool. Immutable, so threads share it."""

    name: str
    regions: tuple[Region, ...]
    pages: int
    page_tokens: int
    page_bytes: int
    record: Mapping[str, Any]  # all that says how a page's bytes are laid out
    slot_offset: int = 0  # where these regions begin in a slot, when they are a part of a page

    def page_numbers(self, host_indices: Any, count: int) -> npt.NDArray[np.int64]:
        """The pages of `count` keys. ValueError unless they are whole pages of this pool, one per key."""
        tokens = np.asarray(host_indices.cpu() if hasattr(host_indices, "cpu") else host_indices)
        if tokens.size != count * self.page_tokens:
            raise ValueError(
                f"{self.name}: {tokens.size} host indices for {count} pages of {self.page_tokens} tokens"
            )
        rows = tokens.astype(np.int64, copy=False).reshape(count, self.page_tokens)
        first = rows[:, 0]
        numbers = first // self.page_tokens
        whole = (rows == (numbers * self.page_tokens)[:, None] + np.arange(self.page_tokens)).all()
        if not whole or (count and (numbers.min() < 0 or numbers.max() >= self.pages)):
            raise ValueError(f"{self.name}: host indices are not whole pages of a pool of {self.pages}")
        return numbers


def layout_of(name: str, pool: Any) -> PoolLayout:
    """The layout of a registered pool. UnsupportedPool when it is not one that is known to be stored
    whole."""
    kind = type(pool).__name__
    if kind not in KNOWN_POOLS.get(name, ()):
        known = "; ".join(f"{pool}: {', '.join(sorted(kinds))}" for pool, kinds in KNOWN_POOLS.items())
        raise UnsupportedPool(f"host pool '{name}' of class {kind} is not supported; supported are {known}")
    if pool.layout not in LAYOUTS:
        raise UnsupportedPool(
            f"host pool '{name}' has the layout {pool.layout!r}; supported are {', '.join(LAYOUTS)}"
        )
    if getattr(pool, "layer_num", 0) > getattr(pool, "target_layer_num", getattr(pool, "layer_num", 0)):
        raise UnsupportedPool(f"host pool '{name}' carries layers of a draft model, which is not supported")
    page_tokens = int(pool.page_size)
    pages = int(pool.size) // page_tokens
    regions = _regions(name, pool, pages, page_tokens)
    page_bytes = sum(page for _, _, page in regions)
    whole_bytes = int(pool.size_per_token) * page_tokens
    if page_bytes != whole_bytes:
        raise UnsupportedPool(
            f"host pool '{name}' keeps {whole_bytes} bytes a page and hands out {page_bytes} of them"
        )
    return PoolLayout(name, regions, pages, page_tokens, page_bytes, _record(name, pool, regions))


def _regions(name: str, pool: Any, pages: int, page_tokens: int) -> tuple[Region, ...]:
    asked = sorted({0, min(1, pages - 1), pages - 1})
    places = [_page(pool, number, page_tokens) for number in asked]
    first = places[0]
    strides = [0] * len(first)
    if pages > 1:
        strides = [later - base for (base, _), (later, _) in zip(first, places[1], strict=True)]
    for number, place in zip(asked, places, strict=True):
        expected = [(base + number * step, size) for (base, size), step in zip(first, strides, strict=True)]
        if place != expected:
            raise UnsupportedPool(f"host pool '{name}' does not have its pages at equal distances")
    # The native engine wants pages that do not overlap; a pool of one page has no stride of its own.
    return tuple((base, step or size, size) for (base, size), step in zip(first, strides, strict=True))


def _page(pool: Any, number: int, page_tokens: int) -> list[tuple[int, int]]:
    import torch

    tokens = torch.arange(number * page_tokens, (number + 1) * page_tokens, dtype=torch.int64)
    addresses, sizes = pool.get_page_buffer_meta(tokens)
    return [(int(at), int(size)) for at, size in zip(addresses, sizes, strict=True) if size]


def _record(name: str, pool: Any, regions: tuple[Region, ...]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "pool": name,
        "class": type(pool).__name__,
        "layout": str(pool.layout),
        "page_tokens": int(pool.page_size),
        "format_tag": str(getattr(pool, "storage_format_tag", None) or ""),
        "region_bytes": [size for _, _, size in regions],
    }
    for field in _SHAPE_FIELDS:
        value = getattr(pool, field, None)
        if value is not None:
            record[field] = _plain(value)
    for field in _TYPE_FIELDS:
        if hasattr(pool, field):
            record[field] = str(getattr(pool, field))
    return record


def _plain(value: Any) -> Any:
    """Numbers and shapes, nested, as JSON has them."""
    return int(value) if isinstance(value, int) else [_plain(part) for part in value]
