"""Which engines share: the namespace of one pool of one rank is all that changes its bytes.

SGLang's own storage configuration names neither dtype nor layout nor weights, so these come from the host
pool and from the server's arguments. The served model name is left out: it is for people.
"""

from collections.abc import Mapping
from typing import Any

from kvtier_connectors.common.weights import weights_identity
from kvtier_connectors.sglang_hicache.pools import PoolLayout, UnsupportedPool
from kvtier_connectors.sglang_hicache.settings import WHERE

FORMAT = 1  # of what this adapter writes; raise it when a page's bytes come to lie otherwise

# Server arguments that change what a model computes, and so what its pages hold.
_MODEL_ARGUMENTS = (
    "dtype",
    "json_model_override_args",
    "kv_cache_dtype",
    "load_format",
    "model_impl",
    "quantization",
    "quantization_param_path",
    "weight_version",
)


def model_record(arguments: Any, weights_id: str | None, setting: str = WHERE) -> dict[str, Any]:
    """Of the model that these server arguments serve. setting: where the user can name its weights."""
    weights = weights_identity(
        str(arguments.model_path),
        weights_id=weights_id,
        revision=getattr(arguments, "revision", None),
        commit=None,
        load_format=str(getattr(arguments, "load_format", "auto")),
        seed=getattr(arguments, "random_seed", None),
        setting=setting,
    )
    record = {name: str(getattr(arguments, name, None)) for name in _MODEL_ARGUMENTS}
    return {**record, "weights": weights}


def pool_fingerprint(
    layout: PoolLayout,
    config: Any,
    model: Mapping[str, Any],
    *,
    engine_version: str,
    device: str,
    zero_copy: bool,
) -> dict[str, Any]:
    """Of one pool of this rank. UnsupportedPool where SGLang would store some ranks' pages only."""
    replicated = bool(config.is_mla_model) and layout.record["class"] == "MLATokenToKVPoolHost"
    if config.is_mla_model and not replicated and config.tp_size > 1:
        raise UnsupportedPool(
            f"host pool '{layout.name}' differs between ranks, but beside an MLA pool SGLang stores rank 0's "
            f"pages only; tp_size is {config.tp_size}, supported is 1"
        )
    tp = None if replicated else [config.tp_rank, config.tp_size]
    return {
        "engine": "sglang",
        "engine_version": engine_version,
        "format": FORMAT,
        "device": device,
        # SGLang's flat pages have another order of bytes than the regions that it hands out.
        "page_order": "regions" if zero_copy else "flat",
        "model": dict(model),
        "page": dict(layout.record),
        "parallel": {
            "tp": tp,
            "pp": [config.pp_rank, config.pp_size],
            "cp": [getattr(config, "attn_cp_rank", 0), getattr(config, "attn_cp_size", 1)],
        },
    }
