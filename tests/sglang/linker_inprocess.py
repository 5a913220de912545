"""SGLang's radix tree with a linker to kvtier, in this process: what an engine's scheduler has, no model.

`LinkedStack` plays the scheduler: it computes KV (random numbers), lets the tree offload it, and in another
stack walks a request through lookup, load and the forward pass's reads.
"""

from array import array
from typing import Any

import torch
from harness import until
from kvtier_connectors.sglang_linker import KvtierLinker
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

PAGE_TOKENS = 16
TOKENS = 512
LAYERS = 4

# One process, one rank; SGLang reads that from its global context.
_one_rank = get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1)
_one_rank.__enter__()


def pool_of(kind: str) -> Any:
    common: dict[str, Any] = {
        "size": TOKENS,
        "page_size": PAGE_TOKENS,
        "dtype": torch.bfloat16,
        "layer_num": LAYERS,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    if kind == "mla":
        return MLATokenToKVPool(kv_lora_rank=32, qk_rope_head_dim=8, **common)
    return MHATokenToKVPool(head_num=2, head_dim=32, **common)


class LinkedStack:
    """A tree with a device pool of its own, linked to kvtier. Close it."""

    def __init__(self, address: str, *, kind: str = "mha", **extra: Any) -> None:
        arguments = ServerArgs(model_path="dummy", page_size=PAGE_TOKENS)
        set_global_server_args_for_scheduler(arguments)
        self.pool = pool_of(kind)
        self.allocator = PagedTokenToKVPoolAllocator(
            TOKENS, PAGE_TOKENS, torch.bfloat16, "cpu", self.pool, need_sort=False
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(
                size=4, max_context_len=TOKENS, device="cpu", enable_memory_saver=False
            ),
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE_TOKENS,
            tree_components=(ComponentType.FULL,),
            tree_core_backend="python",
        )
        self.cache = UnifiedRadixCache(params)
        self.linker = KvtierLinker(
            arguments,
            params,
            components=set(self.cache.components),
            extra_config={"address": address, "weights_id": "made up", "deadline_ms": 5000, **extra},
        )
        self.cache.init_cache_linker(self.linker)
        self.pool.register_layer_transfer_counter(self.linker.layer_done_counter)

    def store(self, tokens: list[int], seed: int = 7) -> list[torch.Tensor]:
        """Put random KV under these tokens, and have the tree offload it. Returns it."""
        rows = self.allocator.alloc(len(tokens))
        draw = torch.Generator().manual_seed(seed)
        for buffer in self._buffers():
            buffer[rows] = torch.randn(buffer[rows].shape, generator=draw).to(buffer.dtype)
        self.insert(tokens, rows)
        return self.at(rows)

    def insert(self, tokens: list[int], rows: torch.Tensor, *, owned: int = 0) -> None:
        """What a request does with its KV when it has ended. owned: the first rows are the tree's already.

        The tree frees the others of which it has a copy."""
        key = RadixKey(array("q", tokens))
        self.cache.insert(InsertParams(key=key, value=rows, prev_prefix_len=owned))

    def settle(self) -> None:
        """Wait until no offload is under way."""

        def ended() -> bool:
            self.cache.check_hicache_events()
            return not self.cache.linker.pending_offloads

        until(ended, "all offloads have ended")

    def match(self, tokens: list[int], rid: str = "request") -> tuple[Any, Any]:
        """A request, and what the tree and kvtier have of its tokens."""
        request = Req(
            rid=rid,
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=SamplingParams(temperature=0, max_new_tokens=1),
        )
        key = RadixKey(array("q", tokens))
        found = self.cache.match_prefix(MatchPrefixParams(key=key, req=request))
        request.last_node = found.last_device_node
        return request, found

    def queue(self, request: Any, found: Any) -> int:
        """Admit the request: its load is queued. Returns the tokens that will come."""
        params = InitLoadBackParams(
            best_match_node=found.best_match_node, host_hit_length=found.host_hit_length, req=request
        )
        count, _ = self.cache.init_load_back(params)
        return int(count)

    def forward(self, *requests: Any) -> tuple[list[list[torch.Tensor]], list[Any]]:
        """Run a batch: what its layers read of each request's loaded tokens, and whose load had failed."""
        linker = self.cache.linker
        rows = [linker.private_load_indices.get(request.rid) for request in requests]
        self.linker.layer_done_counter.set_consumer(self.cache.ready_to_load_host_cache())
        for layer in range(LAYERS):
            self.pool.get_key_buffer(layer)  # waits for the layer
        read = [[] if mine is None else self.at(mine) for mine in rows]
        return read, self.cache.finish_external_linker_loads(list(requests))

    def at(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Copies of all that the device holds there."""
        return [buffer[rows].clone() for buffer in self._buffers()]

    def _buffers(self) -> list[torch.Tensor]:
        groups = [getattr(self.pool, name, None) for name in ("k_buffer", "v_buffer", "kv_buffer")]
        return [buffer for group in groups if group is not None for buffer in group]

    def close(self) -> None:
        self.cache.linker.close()

    def __enter__(self) -> "LinkedStack":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
