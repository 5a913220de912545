"""`KVTierConnector`: vLLM's `OffloadingConnector` with our spec, and with loads that may fail.

Three things differ from the stock class: our spec is put in by itself, so that the user's one flag is
enough; a failed load is reported and recomputed where the stock class asserts, from its first lost block on
where vLLM can take that (models with a single KV group), else as a whole (`failed_recving`); leases are kept
in books of our own until every worker has reported, through resets and aborts.
"""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import vllm
from kvtier_connectors.common.guard import guarded, nothing
from kvtier_connectors.vllm_connector import compat, settings
from kvtier_connectors.vllm_connector.kernels import KernelReport, kernels_of, merged
from kvtier_connectors.vllm_connector.logs import join_engine_log
from kvtier_connectors.vllm_connector.manager import KVTierManager
from kvtier_connectors.vllm_connector.spec import building
from kvtier_connectors.vllm_connector.transfer import WorkerReport
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

logger = logging.getLogger(__name__)

compat.check_installed(vllm.__version__)


class KVTierConnector(OffloadingConnector):
    """One in the scheduler and one in each worker. Only `__init__` raises: on a configuration error."""

    WHOLE_ROWS: ClassVar[bool] = False  # of the pool's blocks, see `plan_groups`

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        join_engine_log()
        _configure(vllm_config, kv_cache_config)
        with building(vllm_config, kv_cache_config, whole_rows=self.WHOLE_ROWS):
            super().__init__(vllm_config, role, kv_cache_config)
        self._failed_jobs: set[int] = set()  # of this worker, until the next report
        self._lost_blocks: set[int] = set()  # device blocks that failed loads left unwritten, as well

    # ---- scheduler ----

    @property
    def _manager(self) -> KVTierManager:
        return cast(KVTierManager, self.scheduler.manager)

    @guarded(nothing)
    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Mapping[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """What the workers reported when they were ready."""
        self._manager.know_kernels(merged(metadata.values()))

    def on_new_request(self, request: Request) -> None:
        """A request joins the queue: what it has on storage comes up while it waits."""
        super().on_new_request(request)
        self._manager.prefetch(request.request_id, request.block_hashes)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How much of the request's prefix can be loaded."""
        self._manager.begin_lookup(request.request_id, request.block_hashes, num_computed_tokens)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """This step's jobs."""
        metadata = super().build_connector_meta(scheduler_output)
        if isinstance(metadata, OffloadingConnectorMetadata):
            self._manager.bind_jobs(metadata.load_jobs, metadata.store_jobs)
        return metadata

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What the workers reported."""
        self._manager.mark_bad(connector_output.failed_recving or ())
        super().update_connector_output(connector_output)
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, WorkerReport):
            self._manager.settle(report.completed_jobs, report.failed_jobs, absent=report.absent)

    # ---- worker ----

    @guarded(nothing)
    def get_handshake_metadata(self) -> KernelReport | None:
        """Which attention kernels this worker runs. Within a MultiConnector nothing: it has one such channel,
        and hands what comes out of it to all its connectors."""
        if get_kv_transfer_group() is not self:
            return None
        return self._kernel_report()

    def _kernel_report(self) -> KernelReport:
        """How the kernels, and the device itself, arrange a layer's bytes."""
        layers = kernels_of(self._vllm_config.compilation_config.static_forward_context)
        worker = getattr(self.connector_worker, "worker", None)
        if words := getattr(worker, "layout_words", ""):
            layers = {layer: f"{kernels} on {words}" for layer, kernels in layers.items()}
        return KernelReport(layers)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Wait for copies whose device blocks are used anew by the next forward pass."""
        self._doom_outdated_loads(kv_connector_metadata)
        super().handle_preemptions(kv_connector_metadata)
        # The step before is launched, the next one is not: the time for loads where steps replace buffers.
        cast(Any, self.connector_worker).worker.load_window()

    @guarded(nothing)
    def _doom_outdated_loads(self, metadata: Any) -> None:
        """Loads are flushed at a reset only: what they carry may be of older weights, so they have failed."""
        side = self.connector_worker
        if side is None or side.worker is None or not metadata.jobs_to_flush:
            return
        if loads := set(metadata.jobs_to_flush) & side._load_jobs.keys():
            side.worker.doom(loads)  # type: ignore[attr-defined]

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Requests whose loads ended; failed ones among them are recomputed."""
        side = cast(Any, self.connector_worker)
        requests = dict(side._load_jobs)  # the call below takes out what ended
        sent, received = self.get_finished(finished_req_ids)
        failed = side.worker.take_failed()
        partial, blocks = side.worker.take_partial()
        side.worker.take_unwritten()  # these loads' requests are named, below
        self._failed_jobs |= failed
        self._lost_blocks |= blocks
        return KVConnectorTransferResults(
            finished_sending=sent,
            finished_recving=received,
            failed_recving={requests[job] for job in failed - partial if job in requests},
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks behind the leading ones of loads that failed part of the way: recomputed from there on."""
        blocks, self._lost_blocks = self._lost_blocks, set()
        return blocks

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """The framework's report, with the jobs that failed here."""
        report = super().build_connector_worker_meta()
        if report is None:
            return None
        failed, self._failed_jobs = self._failed_jobs, set()
        absent = cast(Any, self.connector_worker).worker.absent
        return WorkerReport(report.completed_jobs, report.transfer_stats, failed, absent)

    # ---- front end ----

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> Any:
        """vLLM's metrics of the framework and ours; called in the front-end process."""
        settings.inject(vllm_config.kv_transfer_config.kv_connector_extra_config)
        return super().build_prom_metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _configure(vllm_config: Any, kv_cache_config: Any) -> None:
    """Complete the user's configuration. ValueError for what cannot be."""
    transfer = vllm_config.kv_transfer_config
    extra = transfer.kv_connector_extra_config
    own = settings.parse(extra)
    if transfer.kv_load_failure_policy != own.load_failure_policy:
        logger.info(
            "kvtier: kv_load_failure_policy is set to %r by kv_connector_extra_config.load_failure_policy; "
            "it was %r (vLLM's default, 'fail', ends a request whose load failed)",
            own.load_failure_policy,
            transfer.kv_load_failure_policy,
        )
        transfer.kv_load_failure_policy = own.load_failure_policy
    if own.load_failure_policy == "fail":
        logger.warning(
            "kvtier: load_failure_policy 'fail': a lost chunk ends its request instead of a recompute"
        )
    settings.inject(extra)
    if "blocks_per_chunk" not in extra:
        groups = build_offloading_config(vllm_config, kv_cache_config).groups
        specs = [kv_cache_config.kv_cache_groups[group.group_id].kv_cache_spec for group in groups]
        extra["blocks_per_chunk"] = settings.blocks_per_chunk(
            own.chunk_tokens,
            tuple(group.tokens_per_block for group in groups),
            has_recurrent_state=any("Mamba" in type(spec).__name__ for spec in specs),
            max_model_tokens=vllm_config.model_config.max_model_len,
            retention_tokens=getattr(vllm_config.cache_config, "prefix_cache_retention_interval", None),
        )
