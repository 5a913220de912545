"""Does the installed vLLM fit? Checked once, when the connector's module is imported.

The adapter overrides and calls parts of vLLM that are not a published interface. Each is listed here with the
parameters that we rely on; a vLLM that differs is refused with one message instead of failing in the middle.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence

VERSION_FIRST = (0, 29)
VERSION_LAST = (0, 33)

_V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
_OFFLOAD = "vllm.v1.kv_offload.base"

# module:Class.method -> its parameters without self, in order. Further ones with a default are fine.
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
    problems = misfits(SIGNATURES)
    if not in_range(version):
        low, high = (".".join(map(str, v)) for v in (VERSION_FIRST, VERSION_LAST))
        problems.insert(0, f"its version is outside {low} to {high}")
    if problems:
        raise ImportError(
            f"KVTierConnector does not fit vLLM {version}: " + "; ".join(problems) + ". Nothing is cached; "
            "remove kv_connector KVTierConnector or install a kvtier and a vLLM that fit."
        )


def in_range(version: str) -> bool:
    """Whether a version string lies in the target range; one that cannot be read does not."""
    try:
        release = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    except ValueError:
        return False
    return VERSION_FIRST <= release <= VERSION_LAST


def misfits(signatures: Mapping[str, Sequence[str]]) -> list[str]:
    """What is missing or has other parameters, in words."""
    problems = []
    for where, wanted in signatures.items():
        module, _, path = where.partition(":")
        try:
            target: object = importlib.import_module(module)
            for name in path.split("."):
                target = getattr(target, name)
        except (ImportError, AttributeError):
            problems.append(f"{path} is missing")
            continue
        problem = _difference(target, wanted)
        if problem:
            problems.append(f"{path} {problem}")
    return problems


def _difference(target: object, wanted: Sequence[str]) -> str | None:
    parameters = list(inspect.signature(target).parameters.values())  # type: ignore[arg-type]
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    have, rest = [p.name for p in named[: len(wanted)]], named[len(wanted) :]
    if have != list(wanted):
        return f"takes ({', '.join(p.name for p in named)}), not ({', '.join(wanted)})"
    if required := [p.name for p in rest if p.default is p.empty]:
        return f"requires also ({', '.join(required)})"
    return None
