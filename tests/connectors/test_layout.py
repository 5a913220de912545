"""Where blocks lie in a slot, against a plain numpy model of the copy."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtier_connectors.vllm_connector.devices import tensors_of
from kvtier_connectors.vllm_connector.layout import (
    GroupPlan,
    block_positions,
    check_regions,
    plan_groups,
    regions_of,
)


def plan(group=0, blocks=2, block_bytes=8, parts=1, windowed=False):
    return GroupPlan(
        group_id=group,
        tokens_per_block=16,
        hashes_per_chunk=blocks,
        blocks_per_chunk=blocks,
        block_bytes=block_bytes,
        parts=parts,
        windowed=windowed,
    )


class FullAttentionSpec:
    def __init__(self, page):
        self.page_size_bytes = page


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SlidingWindowSpec:
    def __init__(self, page):
        self.page_size_bytes = page


def configs(specs, *, layers=2, row=0, world=1, replicated=False, blocks=2, strides=()):
    config = SimpleNamespace(
        replicated_layout=replicated,
        worker_kv_bytes_per_block=row,
        parallel=SimpleNamespace(world_size=world),
        cache=SimpleNamespace(blocks_per_chunk=blocks, tokens_per_hash=16),
        groups=[
            SimpleNamespace(group_id=i, tokens_per_block=32, layer_names=[f"l{i}.{n}" for n in range(layers)])
            for i in range(len(specs))
        ],
    )
    kv = SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs],
        kv_cache_tensors=[SimpleNamespace(block_stride=stride) for stride in strides],
    )
    return config, kv


def test_plan_of_one_dense_group():
    (one,) = plan_groups(*configs([FullAttentionSpec(100)], row=200, world=4))
    assert (one.block_bytes, one.part_bytes, one.chunk_bytes) == (200, 400, 1600)
    assert one.hashes_per_chunk == 4
    assert one.tokens_per_chunk == 64
    assert not one.windowed


def test_replicated_kv_has_one_part():
    (one,) = plan_groups(*configs([MLAAttentionSpec(100)], row=200, world=4, replicated=True))
    assert one.parts == 1
    assert not one.windowed


def test_hybrid_groups_share_a_row_and_only_take_their_pages():
    full, window = plan_groups(
        *configs([FullAttentionSpec(100), SlidingWindowSpec(50)], row=200, strides=(100, 100))
    )
    assert (full.block_bytes, window.block_bytes) == (200, 100)
    assert (full.windowed, window.windowed) == (False, True)


def test_packed_rows_are_moved_whole():
    plans = plan_groups(*configs([FullAttentionSpec(50), SlidingWindowSpec(50)], row=200, strides=(200, 200)))
    assert [p.block_bytes for p in plans] == [200, 200]


def test_a_group_of_unlike_layers_counts_its_page_once():
    spec = SimpleNamespace(page_size_bytes=300, kv_cache_specs={"a": FullAttentionSpec(100)})
    (one,) = plan_groups(*configs([spec], layers=2))
    assert one.block_bytes == 300
    assert not one.windowed


def model_copy(plans, pools, ids, sizes, positions, chunks):
    """Bytes of each chunk as the engine would write them: one region of one byte per block and group."""
    slots = [
        np.full(p.blocks_per_chunk, 255, np.uint8)
        for p, n in zip(plans, chunks, strict=True)
        for _ in range(n)
    ]
    at = 0
    for group, size in enumerate(sizes):
        for block, position in zip(ids[at : at + size], positions[at : at + size], strict=True):
            per_chunk = plans[group].blocks_per_chunk
            slots[position // per_chunk][position % per_chunk] = pools[group][block]
        at += size
    return slots


@given(
    per_chunk=st.integers(1, 8),
    chunks=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    first=st.integers(0, 100),
)
def test_whole_chunks_fill_every_slot_in_order(per_chunk, chunks, first):
    plans = [plan(group=g, blocks=per_chunk) for g in range(len(chunks))]
    sizes = [count * per_chunk for count in chunks]
    indices = [first * per_chunk for _ in chunks]
    positions = block_positions(plans, chunks, sizes, indices, whole_chunks=True)
    assert positions is not None
    assert positions.tolist() == list(range(sum(sizes)))
    pools = [np.arange(sum(sizes), dtype=np.uint8) for _ in chunks]
    slots = model_copy(plans, pools, range(sum(sizes)), sizes, positions, chunks)
    assert np.concatenate(slots or [np.zeros(0, np.uint8)]).tolist() == list(range(sum(sizes)))


@given(per_chunk=st.integers(1, 8), first=st.integers(0, 50), blocks=st.integers(1, 40))
def test_a_load_may_begin_and_end_within_a_chunk(per_chunk, first, blocks):
    chunks = (first + blocks - 1) // per_chunk - first // per_chunk + 1
    positions = block_positions([plan(blocks=per_chunk)], [chunks], [blocks], [first], whole_chunks=False)
    assert positions is not None
    logical = positions + first // per_chunk * per_chunk
    assert logical.tolist() == list(range(first, first + blocks))
    assert positions.max() < chunks * per_chunk


@given(
    per_chunk=st.integers(2, 8), chunks=st.integers(1, 6), missing=st.integers(1, 7), first=st.integers(0, 9)
)
def test_a_store_with_a_hole_is_refused(per_chunk, chunks, missing, first):
    blocks = chunks * per_chunk - min(missing, chunks * per_chunk - 1)
    assert block_positions([plan(blocks=per_chunk)], [chunks], [blocks], [first], whole_chunks=True) is None


def test_blocks_and_chunks_that_do_not_fit_are_refused():
    two = [plan(0), plan(1)]
    assert block_positions(two, [1], [2], [0], whole_chunks=True) is None
    assert block_positions(two, [1, 1], [2, 4], [0, 0], whole_chunks=False) is None
    assert block_positions(two, [0, 1], [2, 0], [0, 0], whole_chunks=False) is None


class Tensor:
    def __init__(self, address, stride, device="cpu"):
        self.device = SimpleNamespace(type=device)
        self._address, self._stride = address, stride

    def data_ptr(self):
        return self._address

    def stride(self, _dimension):
        return self._stride

    def element_size(self):
        return 1


def caches(tensors, refs):
    return SimpleNamespace(
        tensors=[SimpleNamespace(tensor=t) for t in tensors],
        group_data_refs=[
            [SimpleNamespace(tensor_idx=i, page_size_bytes=p) for i, p in group] for group in refs
        ],
    )


def test_regions_of_a_group_name_aliases_once():
    both = caches([Tensor(1000, 64), Tensor(9000, 64)], [[(0, 64), (1, 64), (0, 64)], [(1, 32)]])
    tensors = tensors_of(both)
    assert regions_of(both, tensors, 0) == [(1000, 64, 64), (9000, 64, 64)]
    assert regions_of(both, tensors, 1) == [(9000, 64, 32)]


def test_device_memory_without_a_backend_is_refused():
    with pytest.raises(ValueError, match=r"xpu; .* cpu, cuda, tpu"):
        tensors_of(caches([Tensor(0, 64, "xpu")], [[(0, 64)]]))
    with pytest.raises(ValueError, match="cpu and cuda"):
        tensors_of(caches([Tensor(0, 64, "cuda"), Tensor(0, 64)], [[(0, 64)]]))


def test_tensors_larger_than_the_plan_are_refused():
    check_regions(plan(block_bytes=128), [(0, 64, 64), (64, 64, 64)])
    with pytest.raises(ValueError, match="192 bytes"):
        check_regions(plan(block_bytes=128), [(0, 64, 64)] * 3)
    with pytest.raises(ValueError, match="0 bytes"):
        check_regions(plan(block_bytes=128), [])
