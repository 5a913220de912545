"""Does the installed vLLM fit? Checked once, when the connector's module is imported.

The adapter overrides and calls parts of vLLM that are not a published interface, with these parameters.
"""

from collections.abc import Mapping, Sequence

from kvtier_connectors.common.signatures import problems_with

VERSION_FIRST = (0, 29)
VERSION_LAST = (0, 33)

_V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
_OFFLOAD = "vllm.v1.kv_offload.base"

SIGNATURES: Mapping[str, Sequence[str]] = {
    f"{_V1}.offloading_connector:OffloadingConnector.__init__": ("vllm_config", "role", "kv_cache_config"),
    f"{_V1}.offloading_connector:OffloadingConnector.handle_preemptions": ("kv_connector_metadata",),
    f"{_V1}.offloading_connector:OffloadingConnector.register_kv_caches": ("kv_caches",),
    f"{_V1}.offloading_connector:OffloadingConnector.start_load_kv": ("forward_context",),
    f"{_V1}.offloading_connector:OffloadingConnector.get_required_kvcache_layout": ("vllm_config",),
    f"{_V1}.offloading.worker:OffloadingConnectorWorker._init_worker": ("kv_caches",),
    f"{_V1}.offloading_connector:OffloadingConnector.on_new_request": ("request",),
    f"{_V1}.offloading_connector:OffloadingConnector.get_num_new_matched_tokens": (
        "request",
        "num_computed_tokens",
    ),
    f"{_V1}.offloading_connector:OffloadingConnector.build_connector_meta": ("scheduler_output",),
    f"{_V1}.offloading_connector:OffloadingConnector.build_connector_worker_meta": (),
    f"{_V1}.offloading_connector:OffloadingConnector.update_connector_output": ("connector_output",),
    f"{_V1}.offloading_connector:OffloadingConnector.get_finished": ("finished_req_ids",),
    f"{_V1}.offloading_connector:OffloadingConnector.build_prom_metrics": (
        "vllm_config",
        "metric_types",
        "labelnames",
        "per_engine_labelvalues",
    ),
    f"{_V1}.base:KVConnectorBase_V1.get_transfer_results": ("finished_req_ids",),
    f"{_V1}.base:KVConnectorBase_V1.get_block_ids_with_load_errors": (),
    f"{_V1}.base:KVConnectorBase_V1.get_handshake_metadata": (),
    f"{_V1}.base:KVConnectorBase_V1.set_xfer_handshake_metadata_pp_aware": ("metadata",),
    f"{_V1}.base:KVConnectorTransferResults.__init__": (
        "finished_sending",
        "finished_recving",
        "failed_recving",
    ),
    f"{_V1}.offloading.common:TransferJob.__init__": ("req_id", "src_spec", "dst_spec"),
    f"{_V1}.offloading.common:OffloadingConnectorMetadata.__init__": (
        "load_jobs",
        "store_jobs",
        "jobs_to_flush",
    ),
    f"{_V1}.offloading.common:OffloadingWorkerMetadata.__init__": ("completed_jobs", "transfer_stats"),
    f"{_V1}.offloading.common:OffloadingWorkerMetadata.aggregate": ("other",),
    f"{_V1}.offloading.config:build_offloading_config": ("vllm_config", "kv_cache_config"),
    f"{_V1}.offloading.metrics:OffloadingConnectorStats.increase_counter": (
        "counter_name",
        "counter_increase_value",
        "labelvalues",
    ),
    f"{_V1}.offloading.metrics:OffloadingConnectorStats.set_gauge": (
        "gauge_name",
        "gauge_value",
        "labelvalues",
    ),
    f"{_OFFLOAD}:OffloadingSpec.__init__": ("config",),
    f"{_OFFLOAD}:OffloadingSpec.build_metric_definitions": ("extra_config",),
    f"{_OFFLOAD}:OffloadingSpec.get_manager": (),
    f"{_OFFLOAD}:OffloadingSpec.get_worker": ("kv_caches",),
    f"{_OFFLOAD}:OffloadingManager.lookup": ("key", "req_context"),
    f"{_OFFLOAD}:OffloadingManager.get_load_source": ("key", "req_context"),
    f"{_OFFLOAD}:OffloadingManager.prepare_load": ("keys", "req_context"),
    f"{_OFFLOAD}:OffloadingManager.prepare_store": ("keys", "req_context"),
    f"{_OFFLOAD}:OffloadingManager.complete_load": ("keys", "req_context"),
    f"{_OFFLOAD}:OffloadingManager.complete_store": ("keys", "req_context", "success"),
    f"{_OFFLOAD}:OffloadingManager.on_new_request": ("req_context",),
    f"{_OFFLOAD}:OffloadingManager.on_request_finished": ("req_context",),
    f"{_OFFLOAD}:OffloadingManager.on_schedule_end": ("context",),
    f"{_OFFLOAD}:OffloadingManager.reset_cache": (),
    f"{_OFFLOAD}:OffloadingManager.get_stats": (),
    f"{_OFFLOAD}:OffloadingWorker.submit_store": ("job_id", "src_spec", "dst_spec"),
    f"{_OFFLOAD}:OffloadingWorker.submit_load": ("job_id", "src_spec", "dst_spec"),
    f"{_OFFLOAD}:OffloadingWorker.get_finished": (),
    f"{_OFFLOAD}:OffloadingWorker.wait": ("job_ids",),
    f"{_OFFLOAD}:OffloadingWorker.shutdown": (),
    f"{_OFFLOAD}:RequestOffloadingContext.__init__": ("policy",),
    f"{_OFFLOAD}:GPULoadStoreSpec.__init__": ("block_ids", "group_sizes", "block_indices"),
    f"{_OFFLOAD}:TransferResult.__init__": ("job_id", "success", "transfer_size", "transfer_time"),
    f"{_OFFLOAD}:PrepareStoreOutput.__init__": ("keys_to_store", "store_spec", "evicted_keys"),
}


def check_installed(version: str) -> None:
    """ImportError naming everything that does not fit, when the installed vLLM is not one we can serve."""
    problems = problems_with(version, SIGNATURES, VERSION_FIRST, VERSION_LAST)
    if problems:
        raise ImportError(
            f"KVTierConnector does not fit vLLM {version}: " + "; ".join(problems) + ". Nothing is cached; "
            "remove kv_connector KVTierConnector or install a kvtier and a vLLM that fit."
        )
