"""Geometry: how the blocks of one KV group lie in a chunk's slot, and where they lie on the device.

A slot holds one chunk of one group:

    [part of rank 0][part of rank 1]...            parts x part_bytes
    part: [region 0: pages of all the chunk's blocks][region 1: ...]...

A region is a tensor of pages (usually one layer's). Replicated KV (MLA over tensor-parallel ranks) has one
part that rank 0 writes and all ranks read. Scheduler and workers compute the same plan from the same
configuration; a worker checks it against the tensors that it is really given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from kvtier_connectors.vllm_connector.devices import DeviceTensors, Region

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One KV group. Frozen, picklable, the same in every process of an engine."""

    group_id: int  # vLLM's index, the last four bytes of its offload keys
    tokens_per_block: int
    hashes_per_chunk: int
    blocks_per_chunk: int
    block_bytes: int  # of one worker, all layers of the group together
    parts: int
    windowed: bool  # sliding window or recurrent state: chunks may be missing in the middle

    @property
    def tokens_per_chunk(self) -> int:
        """Tokens that one chunk covers."""
        return self.tokens_per_block * self.blocks_per_chunk

    @property
    def part_bytes(self) -> int:
        """What one worker writes of a chunk."""
        return self.block_bytes * self.blocks_per_chunk

    @property
    def chunk_bytes(self) -> int:
        """What a slot holds."""
        return self.part_bytes * self.parts


def plan_groups(config: Any, kv_cache_config: Any, *, whole_rows: bool = False) -> tuple[GroupPlan, ...]:
    """Plans of the offloaded groups, in the framework's order.

    whole_rows: whatever the group, its blocks are rows of the pool that all groups overlay.
    config: vLLM's OffloadingConfig; kv_cache_config: its KVCacheConfig (of a worker or of the scheduler).
    """
    parts = 1 if config.replicated_layout else config.parallel.world_size
    blocks = config.cache.blocks_per_chunk
    plans = []
    for group in config.groups:
        spec = kv_cache_config.kv_cache_groups[group.group_id].kv_cache_spec
        plans.append(
            GroupPlan(
                group_id=group.group_id,
                tokens_per_block=group.tokens_per_block,
                hashes_per_chunk=group.tokens_per_block * blocks // config.cache.tokens_per_hash,
                blocks_per_chunk=blocks,
                block_bytes=_block_bytes(
                    config, kv_cache_config, spec, len(group.layer_names), whole_rows=whole_rows
                ),
                parts=parts,
                windowed=not _is_full_attention(spec),
            )
        )
    return tuple(plans)


def _block_bytes(config: Any, kv_cache_config: Any, spec: Any, layers: int, *, whole_rows: bool) -> int:
    """Bytes of one block of a group in one worker: the same answer in the scheduler and in the workers."""
    # A worker's specification may hold one entry per layer, the scheduler's one representative entry.
    pages = int(spec.page_size_bytes) * (1 if hasattr(spec, "kv_cache_specs") else layers)
    row = int(config.worker_kv_bytes_per_block)  # all groups overlay each other in one row per block
    if row == 0:
        return pages
    # Layers interleaved within each block: vLLM then moves whole rows, whatever the group.
    packed = any(getattr(tensor, "block_stride", None) == row for tensor in kv_cache_config.kv_cache_tensors)
    return row if whole_rows or packed or len(config.groups) == 1 else min(pages, row)


def _is_full_attention(spec: Any) -> bool:
    per_layer = getattr(spec, "kv_cache_specs", None)
    spec = next(iter(per_layer.values())) if per_layer else spec
    return any(base.__name__ == "FullAttentionSpec" for base in type(spec).__mro__)


def regions_of(caches: Any, tensors: DeviceTensors, group: int) -> list[Region]:
    """(address of block 0, bytes between blocks, page bytes) of each region of a group; aliases once.

    caches: vLLM's CanonicalKVCaches; tensors: the same, as their device has them.
    """
    regions: list[Region] = []
    for ref in caches.group_data_refs[group]:
        region = tensors.region(ref.tensor_idx, ref.page_size_bytes)
        if region not in regions:
            regions.append(region)
    return regions


def check_regions(plan: GroupPlan, regions: Sequence[Region]) -> None:
    """ValueError when the tensors do not fit the plan that the scheduler leases slots by."""
    have = sum(page for _, _, page in regions)
    if have == 0 or have > plan.block_bytes:
        raise ValueError(
            f"KV group {plan.group_id}: {have} bytes a block in the tensors, {plan.block_bytes} planned"
        )


def block_positions(
    plans: Sequence[GroupPlan],
    counts: Sequence[int],
    group_sizes: Sequence[int],
    block_indices: Sequence[int],
    *,
    whole_chunks: bool,
) -> I64 | None:
    """Where each block of a job lies: chunk ordinal x blocks_per_chunk + block within the chunk.

    counts: chunks per group in the job; group_sizes: blocks per group; block_indices: per group, the logical
    index of its first block. A load may begin and end within a chunk; a store must fill its chunks
    (whole_chunks), as a chunk with a hole would be read by others. None: blocks and chunks do not fit.
    """
    if not len(plans) == len(counts) == len(group_sizes) == len(block_indices):
        return None
    rows: list[I64] = []
    first_chunk = 0
    for plan, chunks, blocks, index in zip(plans, counts, group_sizes, block_indices, strict=True):
        per_chunk = plan.blocks_per_chunk
        skip = index % per_chunk if blocks else 0
        if -(-(skip + blocks) // per_chunk) != chunks or (whole_chunks and blocks != chunks * per_chunk):
            return None
        start = first_chunk * per_chunk + skip
        rows.append(np.arange(start, start + blocks, dtype=np.int64))
        first_chunk += chunks
    return np.concatenate(rows) if rows else np.zeros(0, np.int64)
