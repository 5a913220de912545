"""SGLang's own parts that `sglang.py` measures with: a host pool, backends from its factory, its controller's
steps between the two."""

from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final, Literal

from kvtier.bench.report import BenchSkipped

# One rank of a model with a KV head a rank: a page of 64 tokens is 1 MiB in 16-bit numbers.
LAYERS: Final = 32
HEAD_DIM: Final = 128
PAGE_TOKENS: Final = 64
PAGE_BYTES: Final = 2 * LAYERS * HEAD_DIM * 2 * PAGE_TOKENS
LAYOUT: Final = "page_first"  # SGLang's default
_MEMORY: Final = "sglang.srt.mem_cache."


class HostPool:
    """SGLang's host pool of KV pages, filled with random numbers."""

    def __init__(self, pages: int, allocator: Literal["default", "shm"] = "default") -> None:
        """allocator: SGLang's name for private or for shared memory. BenchSkipped where SGLang is missing."""
        try:
            self._torch = import_module("torch")
            device_pools = import_module(_MEMORY + "memory_pool")
            host_pools = import_module(_MEMORY + "pool_host.mha")
            base = import_module(_MEMORY + "pool_host.base")
            arguments = import_module("sglang.srt.server_args")
            self.controller = import_module("sglang.srt.managers.cache_controller").HiCacheController
        except ImportError as error:
            raise BenchSkipped(
                f"needs SGLang ({error}); `make bench-sglang` runs in an environment that has it"
            ) from None
        arguments.set_global_server_args_for_scheduler(
            arguments.ServerArgs(model_path="none", page_size=PAGE_TOKENS)
        )
        device_pool = device_pools.MHATokenToKVPool(
            size=PAGE_TOKENS,
            page_size=PAGE_TOKENS,
            dtype=self._torch.bfloat16,
            head_num=1,
            head_dim=HEAD_DIM,
            layer_num=LAYERS,
            device="cpu",
            enable_memory_saver=False,
        )
        tokens = pages * PAGE_TOKENS
        with base.host_memory_budget_scope(2 * pages * PAGE_BYTES):
            self.pool = host_pools.MHATokenToKVPoolHost(
                device_pool.get_device_pool_infos()[0].buffer_info,
                host_to_device_ratio=1.0,
                host_size=0,
                page_size=PAGE_TOKENS,
                layout=LAYOUT,
                pin_memory=False,
                device_capacity_tokens=PAGE_TOKENS,
                start_layer=0,
                end_layer=LAYERS - 1,
                host_token_capacity=tokens,
                allocator_type=allocator,
            )
        self.indices = self._torch.arange(tokens)
        self._words = self.pool.kv_buffer.view(self._torch.int16)
        self._words.random_(-(1 << 15), 1 << 15)

    def digest(self) -> list[int]:
        """One number a page's token, of all that the pool holds."""
        weights = self._torch.arange(1, HEAD_DIM + 1, dtype=self._torch.int32)
        sums: list[int] = (self._words * weights).sum(dim=(0, 2, 3, 4)).tolist()
        return sums

    def forget(self) -> None:
        """Zeros everywhere."""
        self._words.zero_()

    def copy(self) -> Callable[[], object]:
        """A call that copies the whole pool to other memory, by torch and its threads."""
        target = self._torch.empty_like(self._words)
        target.zero_()
        return lambda: target.copy_(self._words)


class Backend:
    """A storage backend that SGLang's factory made, driven as SGLang's controller drives it."""

    def __init__(self, host: HostPool, name: Literal["file", "dynamic"], extra: dict[str, Any]) -> None:
        storage = import_module(_MEMORY + "hicache_storage")
        factory = import_module(_MEMORY + "storage.backend_factory").StorageBackendFactory
        config = storage.HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name="bench",
            extra_config=extra,
        )
        self.storage = factory.create_backend(name, config, host.pool)
        self.storage.register_mem_pool_host(host.pool)
        self._indices = host.indices
        self._batch: int = storage.STORAGE_BATCH_SIZE
        self._state = SimpleNamespace(
            storage_backend=self.storage, storage_host_pool=host.pool, page_size=PAGE_TOKENS
        )
        self._operation = SimpleNamespace(request_id="bench", is_terminated=lambda: False)
        zero_copy = bool(extra.get("interface_v1"))
        steps = ("_page_get_zero_copy", "_page_set_zero_copy") if zero_copy else _GENERIC
        self._get, self._set = (getattr(host.controller, step) for step in steps)

    def set(self, keys: Sequence[str]) -> None:
        """Back up the pool's pages under these keys, all of them."""
        for batch, indices in self._batches(keys):
            if not self._set(self._state, batch, indices):
                raise BenchSkipped(f"{type(self.storage).__name__} did not store all of {len(batch)} pages")

    def get(self, keys: Sequence[str]) -> None:
        """Fetch them into the pool, all of them."""
        for batch, indices in self._batches(keys):
            if (found := self._get(self._state, self._operation, batch, indices)) != len(batch):
                raise BenchSkipped(f"{type(self.storage).__name__} had {found} of {len(batch)} pages")

    def exists(self, keys: Sequence[str]) -> int:
        """How many of them lead."""
        return sum(self.storage.batch_exists(batch) for batch, _ in self._batches(keys))

    def _batches(self, keys: Sequence[str]) -> list[tuple[Sequence[str], Any]]:
        return [
            (
                keys[first : first + self._batch],
                self._indices[first * PAGE_TOKENS : (first + self._batch) * PAGE_TOKENS],
            )
            for first in range(0, len(keys), self._batch)
        ]


_GENERIC: Final = ("_generic_page_get", "_generic_page_set")
