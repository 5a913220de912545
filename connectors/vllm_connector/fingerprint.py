"""Everything that changes the bytes of a chunk or the meaning of its key, as one record per KV group.

Two engines share chunks when these records are equal, so a forgotten field is wrong tokens and a field too
many only a miss: when in doubt, a field is in. Block hashes cover tokens, adapters, images and salts; they do
not cover the model, its weights, precision, layout or parallelism.
"""

import hashlib
import json
import logging
import os
import platform
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from kvtier_connectors.common.weights import weights_identity
from kvtier_connectors.vllm_connector.layout import GroupPlan
from kvtier_connectors.vllm_connector.settings import Settings

logger = logging.getLogger(__name__)

FORMAT = 1  # of our own slot layout (layout.py); raise it when that changes


class Fingerprints:
    """Records for one engine. Reading weights takes a moment, so that part is done once, when first asked."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, config: Any, settings: Settings) -> None:
        """config: the framework's OffloadingConfig."""
        self._vllm = vllm_config
        self._kv_cache = kv_cache_config
        self._config = config
        self._settings = settings
        self._shared: dict[str, Any] | None = None

    def of(self, plan: GroupPlan, kernels: Mapping[str, str]) -> dict[str, Any]:
        """The record of one KV group: values are strings, numbers, booleans, lists and mappings of these.

        kernels: what the workers reported, layer name -> the kernels that write its pages.
        """
        if self._shared is None:
            self._shared = self._engine_record()
        group = self._kv_cache.kv_cache_groups[plan.group_id]
        return {
            **self._shared,
            "kernels": kernel_record(kernels, group.layer_names),
            "group": plan.group_id,
            "group_layers": list(group.layer_names),
            "group_spec": _text(group.kv_cache_spec),
            "group_is_draft": bool(getattr(group, "is_eagle_group", False)),
            "blocks_per_chunk": plan.blocks_per_chunk,
            "tokens_per_block": plan.tokens_per_block,
            "block_bytes": plan.block_bytes,
            "parts": plan.parts,
        }

    def label(self, plan: GroupPlan) -> str:
        """For people, in `kvtier stats` and `kvtier ls`: what lies in the namespace of this group."""
        model, cache = self._vllm.model_config, self._vllm.cache_config
        dtype = model.dtype if str(cache.cache_dtype) == "auto" else cache.cache_dtype
        words = [model_name(str(model.model)), str(dtype).removeprefix("torch.")]
        tp, groups = self._vllm.parallel_config.tensor_parallel_size, len(self._kv_cache.kv_cache_groups)
        words += [f"tp{tp}"] * (tp > 1) + [f"group {plan.group_id + 1}/{groups}"] * (groups > 1)
        return " ".join(words)

    def _engine_record(self) -> dict[str, Any]:
        model, cache, parallel = self._vllm.model_config, self._vllm.cache_config, self._vllm.parallel_config
        return {
            "engine": "vllm",
            "engine_version": _engine_version(),
            "format": FORMAT,
            "model_config": _digest(_model_fields(model)),
            "weights": self._weights(model, self._vllm.load_config),
            "quantization": str(model.quantization),
            "model_dtype": str(model.dtype),
            "kv_dtype": str(cache.cache_dtype),
            "draft": self._draft(),
            "tokens_per_hash": self._config.cache.tokens_per_hash,
            "groups": len(self._kv_cache.kv_cache_groups),
            "layout": str(self._config.kv_cache_layout),
            "backend": str(getattr(getattr(self._vllm, "attention_config", None), "backend", None)),
            "tp": parallel.tensor_parallel_size,
            "pp": parallel.pipeline_parallel_size,
            "pcp": getattr(parallel, "prefill_context_parallel_size", 1),
            "dcp": getattr(parallel, "decode_context_parallel_size", 1),
            "replicated": bool(self._config.replicated_layout),
            **device_record(self._vllm),
            **hash_record(cache.prefix_caching_hash_algo),
        }

    def _weights(self, model: Any, load_config: Any) -> str:
        return weights_identity(
            str(model.model),
            weights_id=self._settings.weights_id,
            revision=model.revision,
            commit=getattr(model.hf_config, "_commit_hash", None),
            load_format=str(getattr(load_config.load_format, "value", load_config.load_format)),
            seed=model.seed,
        )

    def _draft(self) -> dict[str, str] | None:
        """A draft model has layers of its own in the cache."""
        speculative = self._vllm.speculative_config
        draft = getattr(speculative, "draft_model_config", None) if speculative is not None else None
        if draft is None:
            return None
        same = draft.model == self._vllm.model_config.model
        return {
            "method": str(speculative.method),
            "model_config": _digest(_model_fields(draft)),
            "weights": "target" if same else self._weights(draft, self._vllm.load_config),
        }


def kernel_record(kernels: Mapping[str, str], layers: Sequence[str]) -> list[str]:
    """Distinct kernels of the engine; if several, then those of the group's layers, in order if they differ.

    Where they are not known, pages of other kernels could have this very name: then it is a name of its own.
    """
    if not layers or any(layer not in kernels for layer in layers):
        logger.warning(
            "kvtier: the workers did not say which attention kernels write the KV cache, so this engine "
            "shares its cache with no other process (within a MultiConnector there is no way to hear them)"
        )
        return [f"unknown:{secrets.token_hex(16)}"]
    of_engine, of_group = sorted(set(kernels.values())), [kernels[layer] for layer in layers]
    if len(of_engine) == 1:
        return of_engine
    return [*of_engine, *(of_group if len(set(of_group)) > 1 else of_group[:1])]


def model_name(model: str) -> str:
    """A hub's name as it is; of a path what people recognise, also within a hub's cache."""
    parts = [part for part in model.split("/") if part]
    for part in reversed(parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return model if len(parts) <= 2 and not model.startswith(("/", ".")) else parts[-1]


def hash_record(algorithm: str) -> dict[str, str]:
    """How block hashes are made in this process. A seed of its own gives a namespace of its own, loudly."""
    from vllm.v1.core import kv_cache_utils

    if not hashes_are_stable(algorithm, os.environ):
        logger.warning(
            "kvtier: block hashes of %s start from a random seed in every process, so no other engine, and "
            "not this one after a restart, will hit what is stored. Set --prefix-caching-hash-algo "
            "sha256_cbor, or the same PYTHONHASHSEED for all engines.",
            algorithm,
        )
    return {"hash": str(algorithm), "none_hash": bytes(kv_cache_utils.NONE_HASH).hex()}


def hashes_are_stable(algorithm: str, environment: Mapping[str, str]) -> bool:
    """Whether vLLM's block hashes come out the same in every process (vLLM since the middle of 2026)."""
    return "PYTHONHASHSEED" in environment or str(algorithm).startswith("sha256")


def device_record(vllm_config: Any) -> dict[str, str]:
    """What the inside of a page depends on beyond the model: CPU kernels pack keys by instruction set."""
    from vllm.platforms import current_platform

    device = str(current_platform.device_type)
    if device != "cpu":
        return {"device": device, "isa": ""}
    import torch

    marks = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    amx = getattr(torch.cpu, "_is_amx_tile_supported", None)
    marks.append(f"amx={bool(amx()) if amx is not None else 'unknown'}")
    return {"device": device, "isa": " ".join(marks)}


def _engine_version() -> str:
    import vllm

    return str(vllm.__version__)


def _model_fields(model: Any) -> dict[str, Any]:
    """The model's configuration with the engine's overrides applied, without where it lies on disk."""
    fields = dict(model.hf_config.to_dict())
    for name in ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash"):
        fields.pop(name, None)
    return fields


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


def _text(value: Any) -> str:
    """A dataclass in words, without addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
