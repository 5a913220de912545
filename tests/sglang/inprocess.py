"""SGLang's radix tree, cache controller with its threads, and host pools, in this process, on kvtier.

What is built here is what an engine's scheduler has, without the model: SGLang's own test kit makes the pools
and the tree, and `Stack` walks KV through them: device, host, storage, and in another stack back.
"""

import json
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.test.kits.unified_radix_cache.config import CacheConfig
from sglang.test.kits.unified_radix_cache.fixtures import build_fixture, drop_hicache_atexit_pin
from sglang.test.kits.unified_radix_cache.storage import UnifiedRadixCacheStorageFixtures

NEVER = 1 << 30
BACKEND = {
    "backend_name": "kvtier",
    "module_path": "kvtier_connectors.sglang_hicache",
    "class_name": "KvtierHiCache",
    "interface_v1": 1,
    "prefetch_threshold": 1,
    "weights_id": "made up",
}

# One process, one rank; SGLang reads that from its global context.
_one_rank = get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1)
_one_rank.__enter__()


class _Kit(UnifiedRadixCacheStorageFixtures):
    """The kit's steps, with the few methods of a TestCase that they call."""

    def __init__(self, cfg: CacheConfig) -> None:
        self.cfg = cfg

    def assertTrue(self, value: Any, message: str | None = None) -> None:
        assert value, message

    def assertFalse(self, value: Any, message: str | None = None) -> None:
        assert not value, message

    def assertGreater(self, a: Any, b: Any, message: str | None = None) -> None:
        assert a > b, message

    def assertNotEqual(self, a: Any, b: Any, message: str | None = None) -> None:
        assert a != b, message

    def addCleanup(self, *_args: Any, **_options: Any) -> None:
        """The stack is taken down by its owner."""

    def fail(self, message: str) -> None:
        raise AssertionError(message)


@dataclass(frozen=True)
class Case:
    """One kind of cache: components of the tree, layout of the host pools."""

    components: tuple[ComponentType, ...] = (ComponentType.FULL,)
    layout: str = "page_first"
    io: str = "kernel"
    page_tokens: int = 16
    window_tokens: int = 0
    pages: int = 6

    @property
    def config(self) -> CacheConfig:
        window = {"sliding_window_size": self.window_tokens} if self.window_tokens else {}
        return CacheConfig(page_size=self.page_tokens, components=self.components, **window)


@dataclass
class Stack:
    """A tree with pools of its own, attached to kvtier. Close it."""

    case: Case
    address: str
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kit = _Kit(self.case.config)
        self.cache, self._allocator, self._requests = build_fixture(self._kit.cfg, tree_core_backend="python")
        arguments = ServerArgs(
            model_path="dummy",
            page_size=self.case.page_tokens,
            hicache_io_backend=self.case.io,
            hicache_mem_layout=self.case.layout,
            hicache_write_policy="write_through",
            hicache_storage_backend="dynamic",
            hicache_storage_backend_extra_config=json.dumps(
                {**BACKEND, "address": self.address, **self.extra}
            ),
            hicache_storage_prefetch_policy="wait_complete",
        )
        arguments._mamba_cache_chunk_size = max(64, self.case.page_tokens)
        set_global_server_args_for_scheduler(arguments)
        self.cache.init_hicache(arguments, self.cache.cache_init_params)
        drop_hicache_atexit_pin(self.cache)
        self.cache.load_back_threshold = 0
        self.cache.write_through_threshold = NEVER  # what is backed up is the test's to say
        self.controller.prefetch_capacity_limit = self.controller.mem_pool_host.size

    @property
    def controller(self) -> Any:
        return self.cache.cache_controller

    @property
    def backend(self) -> Any:
        """The KvtierHiCache that SGLang made."""
        return self.controller.storage_backend

    @property
    def host_pool(self) -> Any:
        """The host pool of KV pages."""
        return self.controller.mem_pool_host.anchor_entry.host_pool

    def tokens(self, first: int = 100) -> list[int]:
        """A prompt of the case's length."""
        tokens: list[int] = self._kit._make_seq(first, self.case.pages)
        return tokens

    def store(self, tokens: list[int], seed: int = 7) -> list[torch.Tensor]:
        """Put random KV under these tokens, on the device, and back it up to host and storage. Returns it."""
        self._kit._insert(self.cache, self._allocator, self._requests, tokens)
        leaf = self._match(tokens).last_device_node
        rows = self.cache.path_device_indices(leaf)
        draw = torch.Generator().manual_seed(seed)
        for buffer in self._kv_buffers():
            buffer[rows] = torch.randn(buffer[rows].shape, generator=draw).to(buffer.dtype)
        for state, slot in self._states(leaf):
            state[:, slot] = torch.randn(state[:, slot].shape, generator=draw).to(state.dtype)
        self._kit._backup_node(self.cache, leaf)
        self._kit._write_path_to_l3(self.cache, leaf)
        self._kit._flush_l3_backups(self.cache)
        return self.device(tokens)

    def prefetch(self, tokens: list[int]) -> int:
        """Have SGLang fetch these tokens' pages from storage to its host pools. Returns how many tokens
        came."""
        request = CacheRequestHandle("request", 0)
        root = self.cache.root_node_handle()
        self.cache.prefetch_from_storage(request, root, array("q", tokens), None, None)
        self._kit._run_prefetch_to_completion(self.cache, request)
        return int(self.cache.pop_prefetch_loaded_tokens(request) or 0)

    def load_back(self, tokens: list[int]) -> list[torch.Tensor]:
        """Bring what the host pools have of these tokens to the device, and return it."""
        match = self._match(tokens)
        request = self._kit._make_req(self._requests)
        self._kit._apply_match_to_req(request, match)
        self.cache.init_load_back(
            InitLoadBackParams(
                best_match_node=match.best_match_node, host_hit_length=match.host_hit_length, req=request
            )
        )
        self.cache.ready_to_load_host_cache()
        self.cache.loading_check()
        return self.device(tokens)

    def device(self, tokens: list[int]) -> list[torch.Tensor]:
        """Copies of all that the device holds of these tokens: K and V of each layer, then states."""
        leaf = self._match(tokens).last_device_node
        rows = self.cache.path_device_indices(leaf)
        kv = [buffer[rows].clone() for buffer in self._kv_buffers()]
        return kv + [state[:, slot].clone() for state, slot in self._states(leaf)]

    def _match(self, tokens: list[int]) -> Any:
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))

    def _kv_buffers(self) -> list[torch.Tensor]:
        pool = self._allocator.get_kvcache()
        pool = getattr(pool, "full_kv_pool", pool)
        layers = range(pool.start_layer, pool.start_layer + pool.layer_num)
        return [b for layer in layers for b in (pool.get_key_buffer(layer), pool.get_value_buffer(layer))]

    def _states(self, leaf: Any) -> list[tuple[torch.Tensor, Any]]:
        if not self._kit.cfg.has_mamba:
            return []
        cache = self._requests.mamba_pool.mamba_cache
        slot = self.cache.tree_core.get_component_device_value(leaf, ComponentType.MAMBA)
        return [(state, slot) for state in (cache.temporal, *cache.conv)]

    def close(self) -> None:
        with suppress(AttributeError):
            self.controller.detach_storage_backend()

    def __enter__(self) -> "Stack":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
