"""SGLang engines as these tests use them, and the answers that they must give."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from harness import until

from kvtier.demo.engine_process import EngineProcess
from kvtier.demo.models import FIRST_TOKEN, VOCABULARY

PAGE_TOKENS = 16
PROMPT_TOKENS = 400
# So few that a handful of prompts push each other out of the device's and the host's pool.
DEVICE_TOKENS = 1024
MAX_NEW_TOKENS = 12
IDLE_S = 60.0  # what its threads still store is bounded, and so is what they wait for

BACKEND = {
    "backend_name": "kvtier",
    "module_path": "kvtier_connectors.sglang_hicache",
    "class_name": "KvtierHiCache",
    "interface_v1": 1,
    "prefetch_threshold": 32,
    # A busy machine must not end the session; how short an end may be is measured elsewhere.
    "deadline_ms": 5000,
}
ENGINE_OPTIONS: dict[str, Any] = {
    "attention_backend": "torch_native",
    "chunked_prefill_size": 512,
    "context_length": DEVICE_TOKENS,
    "device": "cpu",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "dtype": "float32",
    "enable_cache_report": True,
    "log_level": "info",
    "max_running_requests": 4,
    "max_total_tokens": DEVICE_TOKENS,
    "mem_fraction_static": 0.1,
    "page_size": PAGE_TOKENS,
    "random_seed": 1,
    "sampling_backend": "pytorch",
    "skip_tokenizer_init": True,
}
# What SGLang must be told of a kind of model. On a CPU it rotates DeepSeek's positions in the scaled form
# alone: scaled by one here. And it reads fields that transformers does not write.
MODEL_OPTIONS: Mapping[str, dict[str, Any]] = {
    "mla": {
        "moe_layer_freq": 1,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "rope_scaling": {
            "rope_type": "yarn",
            "type": "yarn",
            "factor": 1.0,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    }
}
LOGPROB_TOLERANCE = 1e-3  # of float32, where a prompt is computed in other pieces than the first time


def _prompt(seed: int) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(PROMPT_TOKENS)]


PROMPTS = [_prompt(seed) for seed in range(12)]
PROMPT_PAGES = PROMPT_TOKENS // PAGE_TOKENS
# Of a prompt's pages those that can be found: its last token is always computed.
FOUND_TOKENS = (PROMPT_PAGES - 1) * PAGE_TOKENS


def engine_options(model: Path, *, caching: bool, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Arguments of SGLang's server for this model. extra: more of kvtier's own settings."""
    options = {**ENGINE_OPTIONS, "model_path": str(model)}
    override = MODEL_OPTIONS.get(model.name.partition("-")[0])
    if override:
        options["json_model_override_args"] = json.dumps(override)
    if not caching:
        return {
            **options,
            "disable_radix_cache": True,
        }  # nothing is reused in what the others are compared with
    return {
        **options,
        "enable_hierarchical_cache": True,
        "hicache_ratio": 1.5,
        "hicache_storage_backend": "dynamic",
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend_extra_config": json.dumps({**BACKEND, **(extra or {})}),
    }


@dataclass(frozen=True)
class Answers:
    """What an engine answered, per prompt."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    cached: list[int]  # prompt tokens that were not computed
    from_storage: list[int]  # those of them that came from kvtier

    @classmethod
    def of(cls, outputs: Iterable[Mapping[str, Any]]) -> "Answers":
        """Out of SGLang's own."""
        answers = cls([], [], [], [])
        for output in outputs:
            meta = output["meta_info"]
            answers.tokens.append(list(output["output_ids"]))
            answers.logprobs.append([step[0] for step in meta["output_token_logprobs"]])
            answers.cached.append(meta["cached_tokens"])
            answers.from_storage.append((meta.get("cached_tokens_details") or {}).get("storage", 0))
        return answers

    def same_as(self, other: "Answers") -> bool:
        """The same tokens, as likely. other: to the same prompts, or to these and more."""
        pairs = zip(
            (p for answer in self.logprobs for p in answer),
            (p for answer in other.logprobs[: len(self.logprobs)] for p in answer),
            strict=True,
        )
        return self.tokens == other.tokens[: len(self.tokens)] and all(
            abs(a - b) < LOGPROB_TOLERANCE for a, b in pairs
        )


def request(prompt: Sequence[int]) -> dict[str, Any]:
    """What SGLang is asked for a prompt: greedy, and how likely each token was."""
    sampling = {"temperature": 0, "max_new_tokens": MAX_NEW_TOKENS, "ignore_eos": True}
    return {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}


class Engine(EngineProcess):
    """address: of a kvtier daemon; None: an engine without HiCache."""

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        address: str | None,
        engine: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            log,
            address=address,
            environment=environment,
            program=[str(Path(__file__).with_name("engine_child.py"))],
        )
        options = engine_options(model, caching=address is not None, extra=extra)
        self.start(model, {**options, **(engine or {})})
        self.started()

    def ask(self, prompts: Sequence[Sequence[int]]) -> None:
        """Send prompts without waiting; `answers` fetches what became of them."""
        self.send("generate", requests=[request(prompt) for prompt in prompts])

    def answers(self) -> Answers:
        """What it answers to the last `ask`."""
        return Answers.of(self.receive())

    def generate(self, prompts: Sequence[Sequence[int]]) -> Answers:
        """One prompt after another."""
        self.ask(prompts)
        return self.answers()

    def forget(self) -> None:
        """Empty the engine's own caches, on the device and on the host, once it is idle; not kvtier."""
        until(lambda: self.call("forget"), "the engine is idle", IDLE_S)


class References:
    """What a model answers to PROMPTS without any cache: each model's engine runs once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._answers: dict[Path, Answers] = {}

    def answers(self, model: Path) -> Answers:
        if model not in self._answers:
            with Engine(model, self._directory / f"{model.name}.log", address=None) as engine:
                self._answers[model] = engine.generate(PROMPTS)
        return self._answers[model]
