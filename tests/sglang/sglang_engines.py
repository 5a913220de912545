"""SGLang engines as these tests use them, and the answers that they must give."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from kvtier.demo.engine_process import EngineProcess
from kvtier.demo.models import FIRST_TOKEN, VOCABULARY

PAGE_TOKENS = 16
DEVICE_TOKENS = (
    1024  # so few that a handful of prompts push each other out of the device's and the host's pool
)
BACKEND = {
    "backend_name": "kvtier",
    "module_path": "kvtier_connectors.sglang_hicache",
    "class_name": "KvtierHiCache",
    "interface_v1": 1,
    "prefetch_threshold": 32,
}
LOGPROB_TOLERANCE = 1e-3  # of float32, where a prompt is computed in other pieces than the first time


def tokens(length: int, seed: int) -> list[int]:
    """A prompt: `length` ordinary token ids, the same for the same seed."""
    draw = Random(seed)
    return [draw.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(length)]


@dataclass(frozen=True)
class Answers:
    """What an engine answered, per prompt."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    cached: list[int]  # prompt tokens that were not computed
    from_storage: list[int]  # those of them that came from kvtier

    def same_as(self, other: "Answers") -> bool:
        """The same tokens, as likely."""
        pairs = zip(
            (p for answer in self.logprobs for p in answer),
            (p for answer in other.logprobs for p in answer),
            strict=True,
        )
        return self.tokens == other.tokens and all(abs(a - b) < LOGPROB_TOLERANCE for a, b in pairs)


class Engine(EngineProcess):
    """address: of a kvtier daemon; None: an engine without HiCache."""

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        address: str | None,
        engine: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            log,
            address=address,
            environment=environment,
            program=[str(Path(__file__).with_name("engine_child.py"))],
        )
        options: dict[str, Any] = {
            "max_total_tokens": DEVICE_TOKENS,
            "context_length": DEVICE_TOKENS,
            "chunked_prefill_size": 512,
            "page_size": PAGE_TOKENS,
            "log_level": "info",
        }
        if address is None:
            options["disable_radix_cache"] = True  # nothing is reused in what the others are compared with
        else:
            options |= {
                "enable_hierarchical_cache": True,
                "hicache_ratio": 1.5,
                "hicache_storage_backend": "dynamic",
                "hicache_storage_prefetch_policy": "wait_complete",
                "hicache_storage_backend_extra_config": json.dumps({**BACKEND, **(extra or {})}),
            }
        self.start(model, {**options, **(engine or {})})
        self.started()

    def generate(self, prompts: list[list[int]], max_tokens: int = 12) -> Answers:
        return Answers(**self.call("generate", prompts=prompts, max_tokens=max_tokens))

    def forget(self) -> None:
        """Empty the engine's own caches, on the device and on the host; not kvtier."""
        assert self.call("forget")


class References:
    """What a model answers without any cache: each model's engine runs once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._answers: dict[Path, tuple[list[list[int]], Answers]] = {}

    def answers(self, model: Path, prompts: list[list[int]]) -> Answers:
        asked = self._answers.get(model)
        if asked is None or asked[0] != prompts:
            engine = Engine(model, self._directory / f"{model.name}.log", address=None)
            asked = self._answers[model] = (prompts, engine.generate(prompts))
            engine.close()
        return asked[1]
