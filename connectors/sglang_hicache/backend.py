"""`KvtierHiCache`: what SGLang's HiCache calls its storage, served by the host's kvtier daemon.

Life: SGLang makes one per rank (`__init__`), registers its host pools, and then calls from three threads: the
prefetch thread asks (`batch_exists*`), the prefetch I/O thread gets, the backup thread sets. `close` ends it,
at run time too; another one may follow.

What cannot be stored rightly is refused while pools are registered, by a ValueError that names it; SGLang
then does not attach. After that nothing raises: a fault is a miss. Nothing touches a host page after the call
that names it has returned.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from kvtier_connectors.common.guard import guarded
from kvtier_connectors.sglang_hicache.copier import Copier
from kvtier_connectors.sglang_hicache.fingerprint import model_record, pool_fingerprint
from kvtier_connectors.sglang_hicache.keys import ends_of_windows, leading, pack
from kvtier_connectors.sglang_hicache.pools import UnsupportedPool, layout_of
from kvtier_connectors.sglang_hicache.settings import WHERE, parse
from kvtier_connectors.sglang_hicache.shelf import Shelf
from kvtier_connectors.sglang_hicache.tally import Tally
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult
from sglang.srt.observability.metrics_collector import StorageMetrics
from sglang.srt.runtime_context import get_server_args
from sglang.version import __version__ as sglang_version

from kvtier import Client, KVTierError

logger = logging.getLogger(__name__)

KV = "kv"
PAGE_TOKENS_ADVISED = 16


def _none_of(_self: object, keys: Sequence[str], *_more: object) -> list[bool]:
    return [False] * len(keys)


def _none_of_transfers(_self: object, transfers: Sequence[Any], *_more: object) -> dict[Any, list[bool]]:
    return {transfer.name: [False] * len(transfer.keys or []) for transfer in transfers}


class KvtierHiCache(HiCacheStorage):
    """See the file's head."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        """kwargs: of SGLang's factory; nothing in it is for us. ValueError names what is not supported."""
        self._settings = parse(storage_config.extra_config)
        self._config = storage_config
        _check(storage_config)
        self._zero_copy = bool((storage_config.extra_config or {}).get("interface_v1", 0))
        self._model = model_record(get_server_args(), self._settings.weights_id)
        self._tally = Tally()
        self._shelves: dict[str, Shelf] = {}
        self._refused = ""
        self._client = Client.connect(
            self._settings.address,
            name=f"sglang/{_rank(storage_config)}",
            managed=True,
            deadline_ms=self._settings.deadline_ms,
        )
        self._copier = Copier(
            self._client,
            threads=self._settings.copy_threads,
            load_deadline_ms=self._settings.load_deadline_ms,
        )

    # ---- pools; these may raise ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool of KV pages."""
        super().register_mem_pool_host(mem_pool_host)
        self._register(mem_pool_host, KV)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Every pool, that of KV pages once more."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(host_pool, str(host_pool_name))

    def _register(self, pool: Any, name: str) -> None:
        try:
            layout = layout_of(name, pool)
            if self._zero_copy is False and name != KV:
                raise UnsupportedPool(
                    f"host pool '{name}' needs \"interface_v1\": 1 in --{WHERE}, which is not set"
                )
            known = self._shelves.get(name)
            if known is not None and known.pool == layout:
                return
            fingerprint = pool_fingerprint(
                layout,
                self._config,
                self._model,
                engine_version=sglang_version,
                device=str(getattr(get_server_args(), "device", None) or ""),
                zero_copy=self._zero_copy,
            )
        except UnsupportedPool as error:
            # SGLang may go on with a backend whose registration has failed: it must then find nothing.
            self._refused = f"kvtier cannot store this engine's cache: {error}"
            raise UnsupportedPool(self._refused) from None
        if name == KV and layout.page_tokens < PAGE_TOKENS_ADVISED:
            logger.warning(
                "kvtier: --page-size is %d: every page is a chunk of its own; 64 is advised, at least %d",
                layout.page_tokens,
                PAGE_TOKENS_ADVISED,
            )
        label = f"sglang {self._config.model_name or ''} {name} {_rank(self._config)}"
        try:
            namespace = self._client.namespace(fingerprint, layout.page_bytes, label=label)
        except KVTierError as error:  # the daemon's matter, not this engine's: it must start
            logger.error("kvtier: serves no %s pages: %s", name, error)
            return
        self._shelves[name] = Shelf(layout, namespace, self._copier, self._tally)
        logger.info("kvtier: stores %s pages of %d bytes (%s)", name, layout.page_bytes, namespace.id.hex())

    def _shelf(self, name: Any) -> Shelf | None:
        return None if self._refused else self._shelves.get(str(name))

    # ---- KV pages ----

    @guarded(lambda *_: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Leading pages that are there: one read of shared memory."""
        shelf = self._shelf(KV)
        return shelf.leading(pack(keys)) if shelf and keys else 0

    @guarded(_none_of)
    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        """Load pages into the KV pool."""
        shelf = self._shelf(KV)
        return shelf.get(keys, host_indices).tolist() if shelf and keys else [False] * len(keys)

    @guarded(_none_of)
    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        """Store pages of the KV pool."""
        shelf = self._shelf(KV)
        before = getattr(extra_info, "prefix_keys", None) or ()
        return shelf.set(keys, host_indices, before).tolist() if shelf and keys else [False] * len(keys)

    # ---- several pools ----

    @guarded(lambda *_: PoolTransferResult(0, {}, []))
    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> PoolTransferResult:
        """All prefixes that every pool can restore: KV whole, of windows and states the end."""
        shelf, hits = self._shelf(KV), {}
        kv_pages = shelf.leading(pack(keys)) if shelf and keys else 0
        packed = pack(keys[:kv_pages])
        legal = np.ones(kv_pages, np.bool_)  # per prefix of 1 to kv_pages pages
        if kv_pages:
            hits[KV] = kv_pages
        for transfer in pool_transfers or []:
            side = self._shelf(transfer.name)
            present = side.present(packed) if side else np.zeros(kv_pages, np.bool_)
            match str(transfer.hit_policy.value):
                case "all_pages":
                    good = np.arange(kv_pages) < leading(present)
                case "trailing_pages":
                    good = ends_of_windows(present, max(1, len(transfer.keys or ())))
                case _:
                    good = np.zeros(kv_pages, np.bool_)
            ends = np.flatnonzero(good)
            if len(ends):
                hits[transfer.name] = int(ends[-1]) + 1
            legal &= good
        restorable = (np.flatnonzero(legal) + 1).tolist()
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    @guarded(_none_of_transfers)
    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        """Load pages of several pools."""
        return {transfer.name: self._transfer("get", transfer) for transfer in transfers}

    @guarded(_none_of_transfers)
    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        """Store pages of several pools."""
        return {transfer.name: self._transfer("set", transfer) for transfer in transfers}

    def _transfer(self, call: str, transfer: Any) -> list[bool]:
        shelf, keys = self._shelf(transfer.name), transfer.keys or []
        if shelf is None or not keys or transfer.host_indices is None:
            return [False] * len(keys)
        answers: list[bool] = getattr(shelf, call)(keys, transfer.host_indices).tolist()
        return answers

    # ---- flat pages ----

    def exists(self, key: str) -> bool:
        """Whether this page is there."""
        return bool(self.batch_exists([key]) == 1)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """`batch_get` of one page."""
        pages = self.batch_get([key], [target_location])
        return pages[0] if pages else None

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """`batch_set` of one page."""
        return bool(self.batch_set([key], [value]))

    @guarded(lambda _self, keys, *_: [None] * len(keys))
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Load pages into these flat tensors; None where that failed."""
        shelf = self._shelf(KV)
        if shelf is None or not keys or target_locations is None or self._zero_copy:
            return [None] * len(keys)
        targets = [_bytes_of(target) for target in target_locations]
        loaded = shelf.get_flat(keys, targets, self._settings.load_deadline_ms / 1000)
        return [page if good else None for page, good in zip(target_locations, loaded, strict=True)]

    @guarded(lambda *_: False)
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store these flat tensors; True when all of them are there."""
        shelf = self._shelf(KV)
        if shelf is None or values is None or self._zero_copy:
            return False
        return bool(shelf.set_flat(keys, [_bytes_of(value) for value in values]).all())

    # ---- the rest ----

    @guarded(lambda *_: False)
    def clear(self) -> bool:  # type: ignore[override]
        """Make this rank's pages unreadable, for every engine that shares them."""
        cleared = [shelf.namespace.clear() for shelf in self._shelves.values()]
        logger.info("kvtier: cleared %d pages", sum(cleared))
        return True

    @guarded(lambda *_: None)
    def get_stats(self) -> StorageMetrics:
        """Pages and GiB/s of each get and set since the last call."""
        return self._tally.drain(StorageMetrics())

    def counters(self) -> dict[str, int]:
        """What this backend and its session have done so far."""
        return self._tally.counts() | self._client.counters()

    @guarded(lambda *_: None)
    def close(self) -> None:
        """End the session. Idempotent; every later call finds nothing."""
        self._refused = self._refused or "closed"
        self._copier.close()
        self._client.close()


def _check(config: Any) -> None:
    if getattr(config, "should_split_heads", False):
        raise ValueError("kvtier: tp_lcm_size: pages split by heads are not supported; leave it out")
    if getattr(config, "dcp_size", 1) > 1:
        raise ValueError(f"kvtier: dcp_size is {config.dcp_size}; supported is 1")


def _rank(config: Any) -> str:
    return f"tp{config.tp_rank}" + (f"-pp{config.pp_rank}" if config.pp_size > 1 else "")


def _bytes_of(page: torch.Tensor) -> Any:
    return page.contiguous().view(torch.uint8).reshape(-1).numpy()
