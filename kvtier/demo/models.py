"""Tiny models with real random weights, written as local checkpoints: one per kind of KV cache.

Weights are drawn wide (standard deviation 0.08): with the libraries' default initialisation, or with tied
embeddings, such small models answer the same tokens whatever they read, and wrong KV bytes would never show.
"""

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("dense", "mla", "sliding")
VOCABULARY = 2048  # token ids below FIRST_TOKEN are special
FIRST_TOKEN = 3

_REVISION = 1  # part of the directory's name: raise it when a shape or the initialisation changes
_STANDARD_DEVIATION = 0.08


def make_model(kind: str, cache_dir: Path) -> Path:
    """Directory of the checkpoint of this kind, made if it is not there yet (a few seconds, about 20 MB).

    The same kind gives the same weights. Two processes may make it at once; the first rename wins.
    Needs torch and transformers. Raises ValueError for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"model kind {kind!r}: allowed are {', '.join(KINDS)}")
    target = cache_dir / f"{kind}-{_REVISION}"
    if (target / "config.json").exists():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=cache_dir))
    try:
        _write(_SHAPES[kind], draft)
        draft.rename(target)
    except OSError:
        if not (target / "config.json").exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def default_cache_dir() -> Path:
    """Where models are kept between runs: the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtier" / "models"


def _write(shape: Callable[[Any], tuple[Any, Any]], directory: Path) -> None:
    # Imported here: kvtier does not need them, only the engine's environment has them.
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config, model_class = shape(transformers)
        model = model_class(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0, _STANDARD_DEVIATION)
    model.to(torch.float32).save_pretrained(directory)


def _dense(transformers: Any) -> tuple[Any, Any]:
    """Grouped-query attention: 4 KiB of float32 KV a token."""
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=40960,
        rope_theta=1e6,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    return config, transformers.Qwen3ForCausalLM


def _mla(transformers: Any) -> tuple[Any, Any]:
    """Multi-head latent attention: one compressed vector a token, the same on every tensor-parallel rank."""
    config = transformers.DeepseekV2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=3,
        max_position_embeddings=16384,
        topk_method="greedy",
        n_group=1,
        topk_group=1,
        routed_scaling_factor=1.0,
    )
    return config, transformers.DeepseekV2ForCausalLM


def _sliding(transformers: Any) -> tuple[Any, Any]:
    """Hybrid: two layers in three see a window of 512 tokens, so the engine keeps two groups of blocks."""
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=False,
        max_position_embeddings=16384,
        sliding_window=512,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        query_pre_attn_scalar=64,
    )
    return config, transformers.Gemma3ForCausalLM


_SHAPES: dict[str, Callable[[Any], tuple[Any, Any]]] = {"dense": _dense, "mla": _mla, "sliding": _sliding}
