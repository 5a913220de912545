"""The out-of-tree `OffloadingSpec`: where vLLM's framework gets our manager and our worker.

The framework builds it from an `OffloadingConfig` alone. What else is needed (the engine's whole
configuration) stands in a context variable while `KVTierConnector` is being built.
"""

import functools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from kvtier_connectors.common.guard import record_fault
from kvtier_connectors.vllm_connector import counters, settings
from kvtier_connectors.vllm_connector.absent_worker import AbsentWorker
from kvtier_connectors.vllm_connector.devices import TENSORS_OF, tensors_of
from kvtier_connectors.vllm_connector.fingerprint import Fingerprints
from kvtier_connectors.vllm_connector.layout import check_regions, plan_groups, regions_of
from kvtier_connectors.vllm_connector.manager import KVTierManager
from kvtier_connectors.vllm_connector.worker import KVTierWorker
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingSpec, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig

if TYPE_CHECKING:
    from kvtier import Client, Namespace

logger = logging.getLogger(__name__)

_engine: ContextVar[tuple[Any, Any, bool]] = ContextVar("kvtier_engine")


@contextmanager
def building(vllm_config: Any, kv_cache_config: Any, *, whole_rows: bool = False) -> Iterator[None]:
    """While the framework builds the spec: what it does not hand on. whole_rows: see `plan_groups`."""
    token = _engine.set((vllm_config, kv_cache_config, whole_rows))
    try:
        yield
    finally:
        _engine.reset(token)


class KVTierSpec(OffloadingSpec):
    """One per connector, that is one in the scheduler and one in each worker."""

    @classmethod
    def build_metric_definitions(cls, extra_config: Mapping[str, Any]) -> dict[str, Any]:
        """What the adapter adds to vLLM's metrics."""
        return dict(counters.DEFINITIONS)

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self.settings = settings.parse(config.extra_config)
        # Replicated KV is stored once: the framework then lets rank 0 alone write, and all acknowledge.
        self.replicated_layout = config.replicated_layout
        self._vllm_config, self._kv_cache_config, whole_rows = _engine.get()
        self._plans = plan_groups(config, self._kv_cache_config, whole_rows=whole_rows)
        self._manager: KVTierManager | None = None
        self._worker: OffloadingWorker | None = None

    def get_manager(self) -> OffloadingManager:
        """The scheduler side. The daemon may be absent; the client attaches when it is there."""
        if self._manager is None:
            client = self._connect("scheduler")
            fingerprints = Fingerprints(self._vllm_config, self._kv_cache_config, self.config, self.settings)

            def open_namespaces(kernels: Mapping[str, str]) -> "list[Namespace]":
                if client is None:
                    return []
                if why := unsupported(self._vllm_config):
                    logger.warning("kvtier: %s; this engine serves without it", why)
                    return []
                return [
                    client.namespace(
                        fingerprints.of(plan, kernels), plan.chunk_bytes, label=fingerprints.label(plan)
                    )
                    for plan in self._plans
                ]

            self._manager = KVTierManager(
                self._plans,
                open_namespaces,
                workers=self.config.parallel.world_size,
                prefetch_requests=self.settings.prefetch_requests,
                attached=lambda: client is not None and client.connected,
                close=lambda: None if client is None else client.close(),
            )
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The worker side, over the tensors of this worker's KV cache."""
        if self._worker is None:
            try:
                self._worker = self._build_worker(kv_caches)
            except Exception as error:
                record_fault("KVTierSpec.get_worker", error)
                self._worker = AbsentWorker()
        return self._worker

    def _build_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        parallel = self.config.parallel
        tensors = tensors_of(kv_caches)
        regions = [regions_of(kv_caches, tensors, group) for group in range(len(self._plans))]
        for plan, group_regions in zip(self._plans, regions, strict=True):
            check_regions(plan, group_regions)
        client = self._connect(f"worker{parallel.rank}")
        if client is None:
            return AbsentWorker()
        return KVTierWorker(
            client,
            self._plans,
            regions,
            tensors,
            num_blocks=self._kv_cache_config.num_blocks,
            part=0 if self.replicated_layout else parallel.rank,
            copy_threads=self.settings.copy_threads,
            load_deadline_ms=self.settings.load_deadline_ms,
            load_window_ms=self.settings.load_window_ms,
        )

    def _connect(self, role: str) -> "Client | None":
        client_class = load_client()
        return client_class and client_class.connect(
            self.settings.address,
            name=f"vllm/{role}",
            group=self.config.engine_id,
            managed=True,
            deadline_ms=self.settings.deadline_ms,
        )


@functools.cache
def load_client() -> "type[Client] | None":
    """kvtier's client, or None, said once a process, where its compiled parts cannot be loaded."""
    try:
        from kvtier import Client
    except (
        Exception
    ) as error:  # a missing or foreign build, wire code that does not suit the engine's protobuf
        logger.error(
            "kvtier: its compiled parts cannot be loaded (%s: %s); this engine serves without cache. "
            "Install kvtier again, built for this Python and beside this engine.",
            type(error).__name__,
            error,
        )
        return None
    return Client


def unsupported(vllm_config: Any) -> str | None:
    """Why an engine of this configuration cannot use the host's tier, or None."""
    from vllm.platforms import current_platform

    if current_platform.device_type not in TENSORS_OF:
        return f"no copy backend for device {current_platform.device_type!r}"
    if not vllm_config.cache_config.enable_prefix_caching:
        # Not only a user's choice: vLLM does so where a backend or model cannot go on from a prefix (the
        # reference MLA backend of CPUs, attention that is not causal). A load would then be wrong tokens.
        return "prefix caching is off, by the user or because this model's backend cannot continue a prefix"
    nodes = getattr(vllm_config.parallel_config, "nnodes_within_dp", 1)
    if nodes > 1:
        return f"the engine's workers are spread over {nodes} hosts and a daemon serves one"
    return None
