"""Does the installed SGLang fit? Checked when SGLang asks for the backend's class, before anything of it is
imported.

The adapter implements an interface of SGLang's that is not versioned, and reads attributes of its host pools.
A release outside the range, or one whose interface differs, is refused with one message.
"""

from collections.abc import Mapping, Sequence

from kvtier_connectors.common.signatures import problems_with

VERSION_FIRST = (0, 5, 22)
VERSION_LAST = (0, 5, 23)

_STORAGE = "sglang.srt.mem_cache.hicache_storage:"
_POOLS = "sglang.srt.mem_cache.pool_host."

SIGNATURES: Mapping[str, Sequence[str]] = {
    f"{_STORAGE}HiCacheStorage.register_mem_pool_host": ("mem_pool_host",),
    f"{_STORAGE}HiCacheStorage.register_mem_host_pool_v2": ("host_pool", "host_pool_name"),
    f"{_STORAGE}HiCacheStorage.batch_exists": ("keys", "extra_info"),
    f"{_STORAGE}HiCacheStorage.batch_get_v1": ("keys", "host_indices", "extra_info"),
    f"{_STORAGE}HiCacheStorage.batch_set_v1": ("keys", "host_indices", "extra_info"),
    f"{_STORAGE}HiCacheStorage.batch_exists_v2": ("keys", "pool_transfers", "extra_info"),
    f"{_STORAGE}HiCacheStorage.batch_get_v2": ("transfers", "extra_info"),
    f"{_STORAGE}HiCacheStorage.batch_set_v2": ("transfers", "extra_info"),
    f"{_STORAGE}HiCacheStorage.get": ("key", "target_location", "target_sizes"),
    f"{_STORAGE}HiCacheStorage.batch_get": ("keys", "target_locations", "target_sizes"),
    f"{_STORAGE}HiCacheStorage.set": ("key", "value", "target_location", "target_sizes"),
    f"{_STORAGE}HiCacheStorage.batch_set": ("keys", "values", "target_locations", "target_sizes"),
    f"{_STORAGE}HiCacheStorage.exists": ("key",),
    f"{_STORAGE}HiCacheStorage.clear": (),
    f"{_STORAGE}HiCacheStorage.get_stats": (),
    f"{_STORAGE}PoolTransferResult.__init__": (
        "kv_hit_pages",
        "extra_pool_hit_pages",
        "restorable_prefix_pages",
    ),
    f"{_STORAGE}HiCacheStorageExtraInfo.__init__": ("prefix_keys", "extra_info"),
    f"{_POOLS}mha:MHATokenToKVPoolHost.get_page_buffer_meta": ("indices",),
    f"{_POOLS}mla:MLATokenToKVPoolHost.get_page_buffer_meta": ("indices",),
    f"{_POOLS}mamba:MambaPoolHost.get_page_buffer_meta": ("indices",),
    "sglang.srt.runtime_context:get_server_args": (),
    "sglang.srt.observability.metrics_collector:StorageMetrics.__init__": (
        "prefetch_pgs",
        "backup_pgs",
        "prefetch_bandwidth",
        "backup_bandwidth",
    ),
}


def check_installed(version: str) -> None:
    """ImportError naming everything that does not fit, when the installed SGLang is not one we can serve."""
    problems = problems_with(version, SIGNATURES, VERSION_FIRST, VERSION_LAST)
    if problems:
        raise ImportError(
            f"kvtier's HiCache backend does not fit SGLang {version}: " + "; ".join(problems) + ". Leave "
            "--hicache-storage-backend out, or install a kvtier and an SGLang that fit (docs/SGLANG.md)."
        )
