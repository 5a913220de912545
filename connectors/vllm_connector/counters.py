"""Names of what the adapter adds to vLLM's own metrics; `vllm:external_prefix_cache_*` stay vLLM's."""

from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

ATTACHED = "vllm:kvtier_attached"
LOOKUP_CHUNKS = "vllm:kvtier_lookup_chunks"
HIT_CHUNKS = "vllm:kvtier_hit_chunks"
LOADED_CHUNKS = "vllm:kvtier_loaded_chunks"
LOADED_BYTES = "vllm:kvtier_loaded_bytes"
STORED_CHUNKS = "vllm:kvtier_stored_chunks"
SKIPPED_CHUNKS = "vllm:kvtier_store_skipped_chunks"
FAILED_LOADS = "vllm:kvtier_failed_loads"
FAILED_STORES = "vllm:kvtier_failed_stores"
FAULTS = "vllm:kvtier_faults"

DEFINITIONS: dict[str, OffloadingMetricMetadata] = {
    ATTACHED: OffloadingGaugeMetadata(
        documentation="1 while the engine is attached to the host's kvtier daemon."
    ),
    LOOKUP_CHUNKS: OffloadingCounterMetadata(documentation="Chunks looked up in the host's index."),
    HIT_CHUNKS: OffloadingCounterMetadata(documentation="Chunks that a lookup found readable."),
    LOADED_CHUNKS: OffloadingCounterMetadata(documentation="Chunks loaded from the host's arena."),
    LOADED_BYTES: OffloadingCounterMetadata(
        documentation="Bytes of loaded chunks, by where they lay when the load began: host or storage.",
        labelnames=("tier",),
    ),
    STORED_CHUNKS: OffloadingCounterMetadata(documentation="Chunks stored into the host's arena."),
    SKIPPED_CHUNKS: OffloadingCounterMetadata(
        documentation="Chunks not stored: present already, pending in another engine, no space.",
        labelnames=("reason",),
    ),
    FAILED_LOADS: OffloadingCounterMetadata(
        documentation="Load jobs that failed; their requests were recomputed."
    ),
    FAILED_STORES: OffloadingCounterMetadata(
        documentation="Store jobs that failed; nothing of them is readable."
    ),
    FAULTS: OffloadingCounterMetadata(documentation="Faults inside the adapter that the engine did not see."),
}
