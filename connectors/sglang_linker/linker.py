"""`KvtierLinker`: what SGLang's UnifiedCacheLinker asks for, served by the host's kvtier daemon.

SGLang has no host tier then: KV goes from the device pool into the arena, which all engines of the host
share, and back. Unlike HiCache's storage, whose faults are misses, a load that fails after a hit ends its
request with an error. So hits are promises (`promises.py`), and faults stop them (`breaker.py`).

Life: one per rank. All calls come from SGLang's scheduler thread; the copies run on two threads of ours
(`loads.py`, `offloads.py`). `reset` and `close` return when nothing touches the device pool any more.
"""

import logging
from typing import Any

import torch
from kvtier_connectors.common.guard import guarded, nothing, record_fault
from kvtier_connectors.sglang_hicache.copier import Copier
from kvtier_connectors.sglang_hicache.fingerprint import model_record
from kvtier_connectors.sglang_hicache.shelf import Shelf
from kvtier_connectors.sglang_hicache.tally import Tally
from kvtier_connectors.sglang_linker.breaker import Breaker
from kvtier_connectors.sglang_linker.device_pool import DevicePool, device_pool
from kvtier_connectors.sglang_linker.loads import Load, Loads
from kvtier_connectors.sglang_linker.offloads import Offload, Offloads
from kvtier_connectors.sglang_linker.promises import Promises
from kvtier_connectors.sglang_linker.settings import WHERE, parse
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    LayerWiseLoadCounter,
    UnifiedCacheLinker,
    device_module,
)
from sglang.srt.runtime_context import get_parallel
from sglang.version import __version__ as sglang_version

from kvtier import Client, CudaDevice, DaemonUnavailable

logger = logging.getLogger(__name__)

FORMAT = 1  # of what this adapter writes; raise it when a page's bytes come to lie otherwise


class KvtierLinker(UnifiedCacheLinker):
    """See the file's head."""

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: Any = None,
        forward_stream: Any = None,
    ) -> None:
        """As SGLang's factory calls it. ValueError names what is not supported."""
        settings = parse(extra_config)
        parallel = _parallel(params)
        pool = device_pool(params, components)
        device = _device(pool)
        self.forward_stream = forward_stream
        self.pools = {PoolName.KV: pool}
        self.layer_done_counter = LayerWiseLoadCounter(len(pool.layers))
        self._alone = all(size == 1 for _, size in parallel.values())
        self._tally = Tally()
        self._breaker = Breaker()
        self._client = Client.connect(
            settings.address,
            name=f"sglang-linker/tp{parallel['tp'][0]}",
            managed=True,
            deadline_ms=settings.deadline_ms,
        )
        self._copier = Copier(
            self._client,
            threads=settings.copy_threads,
            load_deadline_ms=settings.load_deadline_ms,
            device=device,
        )
        namespace = self._client.namespace(
            _fingerprint(server_args, pool, parallel, settings.weights_id),
            pool.page.page_bytes,
            label=f"sglang linker {getattr(server_args, 'served_model_name', None) or ''} "
            f"tp{parallel['tp'][0]}",
        )
        self._promises = Promises(namespace, self._copier, self._tally, wait_s=settings.lookup_wait_ms / 1000)
        self._loads = Loads(
            pool.layers, namespace, self._copier, self.layer_done_counter, self._tally, self._breaker
        )
        self._offloads = Offloads(Shelf(pool.page, namespace, self._copier, self._tally))
        logger.info(
            "kvtier: device pages of %d bytes, %d layers (%s)",
            pool.page.page_bytes,
            len(pool.layers),
            namespace.id.hex(),
        )

    # ---- to the device ----

    @guarded(lambda *_: [])
    def lookup(self, rid: str, transfers: Any) -> list[int]:
        """All prefixes that this request can load, in pages."""
        keys = _kv(transfers).keys
        if not keys or self._breaker.open:
            return []
        try:
            return list(range(1, self._promises.make(rid, keys) + 1))
        except DaemonUnavailable:
            self._tally.add(unavailable=1)
            return []

    @guarded(lambda *_: False)
    def load(self, rid: str, transfers: Any) -> bool:
        """Queue what was promised. False: it is computed instead."""
        kv = _kv(transfers)
        lease = self._promises.take(rid, kv.keys)
        if lease is None and self._alone:
            return False
        # With several ranks all must answer alike: what this one has lost is found out when it is loaded.
        self._loads.queue(rid, Load(lease, len(kv.keys), kv.device_indices))
        return True

    def start_layer_wise_loading(self) -> int:
        """Begin the queued loads, after what is launched on the device by now."""
        try:
            ready = device_module.Event()
            ready.record()
            return self._loads.start([ready])
        except Exception as error:
            # The batch counts as failed, and its pages are about to be freed: nothing may be written later.
            record_fault("KvtierLinker.start_layer_wise_loading", error)
            self._loads.cancel_all()
            return -1

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Wait until this batch is over: at most `load_deadline_ms`. True: all of it landed."""
        return self._loads.finish(counter_index)

    def cancel_queued_load(self, rid: str) -> bool:
        """Give the pages of a load that has not begun back."""
        return self._loads.cancel(rid)

    # ---- from the device ----

    @guarded(lambda *_, **__: False)
    def offload(self, transfers: Any, session_id: str | None = None) -> bool:
        """Queue a node's pages. Those that are there already, loaded ones too, cost a look."""
        kv = _kv(transfers)
        if not kv.keys:
            return False
        self._offloads.give(Offload(kv.keys, kv.device_indices, self.record_offload_ready()))
        return True

    @guarded(lambda *_: 0)
    def num_completed_offloads(self) -> int:
        """Results that can be fetched. SGLang asks at every step."""
        self._promises.drop_stale()
        return self._offloads.ended()

    def pop_completed_offload(self) -> bool:
        """The oldest result."""
        return self._offloads.pop()

    # ---- the rest ----

    def counters(self) -> dict[str, int]:
        """What this linker and its session have done so far."""
        return self._tally.counts() | self._client.counters()

    def reset(self) -> None:
        """End all transfers; what is stored stays."""
        self._loads.drain()
        self._offloads.drain()
        self._promises.drop_all()
        self.layer_done_counter.reset()

    @guarded(nothing)
    def close(self) -> None:
        """End all transfers and the session."""
        self.reset()
        self._loads.close()
        self._offloads.close()
        self._copier.close()
        self._client.close()
        logger.info("kvtier: %s", self._tally.counts())


def _kv(transfers: Any) -> Any:
    return next(transfer for transfer in transfers if transfer.name == PoolName.KV)


def _device(pool: DevicePool) -> CudaDevice | None:
    if pool.device.type not in ("cpu", "cuda"):
        raise ValueError(f"kvtier: KV pool on the device '{pool.device.type}'; supported are cpu, cuda")
    return CudaDevice(pool.device.index or 0) if pool.device.type == "cuda" else None


def _parallel(params: Any) -> dict[str, tuple[int, int]]:
    """Of each kind of parallelism that splits KV: this rank, and how many there are."""
    if get_parallel().attn_dcp_size > 1:
        raise ValueError(
            f"kvtier: decode context parallelism of {get_parallel().attn_dcp_size}; supported is 1"
        )
    group = params.attn_tp_cache_group or params.tp_cache_group
    tp = (0, 1)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        tp = torch.distributed.get_rank(group=group), torch.distributed.get_world_size(group=group)
    return {
        "tp": tp,
        "pp": (params.pp_rank, params.pp_size),
        "cp": (params.attn_cp_rank, params.attn_cp_size),
    }


def _fingerprint(
    server_args: Any, pool: DevicePool, parallel: dict[str, tuple[int, int]], weights_id: str | None
) -> dict[str, Any]:
    """All that changes a page's bytes."""
    tp = None if pool.replicated else list(parallel["tp"])
    return {
        "engine": "sglang",
        "engine_version": sglang_version,
        "surface": "linker",
        "format": FORMAT,
        "device": pool.device.type,
        "model": model_record(server_args, weights_id, WHERE),
        "page": dict(pool.page.record),
        "parallel": {"tp": tp, "pp": list(parallel["pp"]), "cp": list(parallel["cp"])},
    }
