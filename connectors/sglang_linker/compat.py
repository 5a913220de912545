"""Does the installed SGLang fit? Checked once, before the linker's module is imported.

The linker's interface is younger than the HiCache backend's and has changed with every release so far.
"""

from collections.abc import Mapping, Sequence

from kvtier_connectors.common.signatures import problems_with

VERSION_FIRST = (0, 5, 23)
VERSION_LAST = (0, 5, 23)

_MODULE = "sglang.srt.mem_cache.unified_cache.unified_cache_linker:"
_LINKER = f"{_MODULE}UnifiedCacheLinker."
_COUNTER = f"{_MODULE}LayerWiseLoadCounter."

SIGNATURES: Mapping[str, Sequence[str]] = {
    f"{_LINKER}record_offload_ready": (),
    f"{_LINKER}lookup": ("rid", "transfers"),
    f"{_LINKER}load": ("rid", "transfers"),
    f"{_LINKER}start_layer_wise_loading": (),
    f"{_LINKER}finish_layer_wise_loading": ("counter_index",),
    f"{_LINKER}cancel_queued_load": ("rid",),
    f"{_LINKER}offload": ("transfers", "session_id"),
    f"{_LINKER}num_completed_offloads": (),
    f"{_LINKER}pop_completed_offload": (),
    f"{_LINKER}reset": (),
    f"{_LINKER}close": (),
    f"{_COUNTER}__init__": ("num_layers",),
    f"{_COUNTER}update_producer": (),
    f"{_COUNTER}complete": ("index", "layer"),
    f"{_COUNTER}fail": ("index", "error"),
    f"{_COUNTER}finish": ("index",),
    f"{_COUNTER}reset": (),
    "sglang.srt.runtime_context:get_parallel": (),
}


def check_installed(version: str) -> None:
    """ImportError naming everything that does not fit, when the installed SGLang is not one we can serve."""
    problems = problems_with(version, SIGNATURES, VERSION_FIRST, VERSION_LAST)
    if problems:
        raise ImportError(
            f"kvtier's linker does not fit SGLang {version}: " + "; ".join(problems) + ". Leave "
            "--enable-unified-cache-external-linker out (the HiCache backend may fit), or install a kvtier "
            "and an SGLang that fit."
        )
