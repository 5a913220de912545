"""Engines that are killed and followed by others, which must answer as an engine without any cache does."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from hosts import Host
from sglang_engines import PAGE_TOKENS, Answers, Engine

from kvtier.demo.models import FIRST_TOKEN, VOCABULARY

PROMPT_TOKENS = 400
PAGES = PROMPT_TOKENS // PAGE_TOKENS
FOUND_TOKENS = (PAGES - 1) * PAGE_TOKENS  # of each prompt: its last token is always computed

# On a CPU SGLang rotates DeepSeek's positions in the scaled form alone: scaled by one here. And it reads
# fields that transformers does not write.
MLA = {
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


def prompt(seed: int) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(PROMPT_TOKENS)]


PROMPTS = [prompt(seed) for seed in range(4)]  # together more than the device holds


def of_model(model: Path, engine: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The engine's arguments, with those that its model needs."""
    override = {"json_model_override_args": json.dumps(MLA)} if model.name.startswith("mla") else {}
    return {**override, **(engine or {})}


@dataclass
class Restarts:
    """Of one folder of logs. Engines of one kind are what `engine` and `environment` say."""

    folder: Path
    _wanted: dict[Path, Answers] = field(default_factory=dict)
    _engines: int = 0

    def engine(self, model: Path, address: str | None, engine: Mapping[str, Any], **more: Any) -> Engine:
        self._engines += 1
        log = self.folder / f"engine-{self._engines}.log"
        return Engine(model, log, address=address, engine=of_model(model, engine), **more)

    def wanted(self, model: Path) -> Answers:
        """Without any cache, once per model."""
        if model not in self._wanted:
            with self.engine(model, None, {}) as plain:
                self._wanted[model] = plain.generate(PROMPTS)
        return self._wanted[model]

    def successor(self, model: Path, host: Host, engine: Mapping[str, Any], ranks: int = 1) -> Engine:
        """An engine that has computed nothing yet, on a host where another one has computed PROMPTS."""
        environment: dict[str, str] = {}
        if ranks > 1:
            engine = {**engine, "tp_size": ranks}
            environment = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks)))}
        with self.engine(model, host.address, engine, environment=environment) as first:
            assert first.generate(PROMPTS).same_as(self.wanted(model))
            stored = len(PROMPTS) * PAGES * ranks
            host.wait_for(lambda: host.chunks() >= stored, f"{stored} pages are stored")
            first.kill()
        return self.engine(model, host.address, engine, environment=environment)
