"""Does the installed SGLang fit? Checked once, when the backend's module is imported.

The adapter implements an interface of SGLang's that is not versioned, and reads attributes of its host pools.
A release outside the range, or one whose interface differs, is refused with one message.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence

VERSION_FIRST = (0, 5, 23)
VERSION_LAST = (0, 5, 23)

_STORAGE = "sglang.srt.mem_cache.hicache_storage:"

# module:path -> its parameters without self, in order. Further ones with a default are fine.
SIGNATURES: Mapping[str, Sequence[str]] = {
    f"{_STORAGE}HiCacheStorage.register_mem_pool_host": ("mem_pool_host",),
    f"{_STORAGE}HiCacheStorage.register_mem_host_pool_v2": ("host_pool", "host_pool_name"),
    f"{_STORAGE}HiCacheStorage.on_host_pools_registered": (),
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
    problems = misfits(SIGNATURES)
    if not in_range(version):
        low, high = (".".join(map(str, v)) for v in (VERSION_FIRST, VERSION_LAST))
        problems.insert(0, f"its version is outside {low} to {high}")
    if problems:
        raise ImportError(
            f"kvtier's HiCache backend does not fit SGLang {version}: " + "; ".join(problems) + ". Leave "
            "--hicache-storage-backend out, or install a kvtier and an SGLang that fit."
        )


def in_range(version: str) -> bool:
    """Whether a version string lies in the range; one that cannot be read does not."""
    try:
        release = tuple(int(part) for part in version.split("+")[0].split(".")[:3])
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
        parameters = [p for p in _parameters(target) if p.name != "self"]
        have, rest = [p.name for p in parameters[: len(wanted)]], parameters[len(wanted) :]
        if have != list(wanted):
            problems.append(
                f"{path} takes ({', '.join(p.name for p in parameters)}), not ({', '.join(wanted)})"
            )
        elif required := [p.name for p in rest if p.default is p.empty]:
            problems.append(f"{path} requires also ({', '.join(required)})")
    return problems


def _parameters(target: object) -> list[inspect.Parameter]:
    return list(inspect.signature(target).parameters.values())  # type: ignore[arg-type]
