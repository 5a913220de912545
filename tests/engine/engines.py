"""Engines as these tests use them, the answers they must give, and the patience to wait for."""

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from harness import PATIENT_MS

from kvtier.demo.engine_process import CONNECTOR, EngineProcess
from kvtier.demo.models import FIRST_TOKEN, VOCABULARY, make_model

CHUNK_TOKENS = 256  # the connector's default; a multiple of every model's block
BYTES_PER_TOKEN = {  # of float32 KV, all layers
    "dense": 4 * 2 * 2 * 64 * 4,  # layers, K and V, heads, head size, bytes
    "mla": 3 * 576 * 4,  # layers, compressed vector, bytes
    "sliding": 6 * 2 * 2 * 64 * 4,
}


_WARM_UP_SEEDS = count(1_000_000)  # no engine's warm-up may be another's hit


@dataclass(frozen=True)
class Model:
    """A checkpoint, and what the engine needs to run it in float32 on any CPU."""

    kind: str
    path: Path
    block_tokens: int  # what vLLM chooses on CPU
    engine: dict[str, Any] = field(default_factory=dict, hash=False)


def load_model(kind: str, cache_dir: Path) -> Model:
    """The tiny model of this kind (kvtier.demo.models), made if need be."""
    path = make_model(kind, cache_dir)
    if kind == "mla":
        # The other CPU backend of MLA needs AMX and knows bfloat16 only; this one has blocks of 16 tokens.
        return Model(kind, path, 16, {"attention_backend": "CPU_MLA"})
    return Model(kind, path, 128)


def tokens(length: int, seed: int) -> list[int]:
    """A prompt: `length` ordinary token ids, the same for the same seed."""
    draw = Random(seed)
    return [draw.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(length)]


def patient(extra_config: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a user writes, and a deadline that a busy machine meets: a session lost to it costs hits.

    The bound itself is measured by tests and benchmarks of clients.
    """
    return CONNECTOR | {"kv_connector_extra_config": {"deadline_ms": PATIENT_MS, **(extra_config or {})}}


class Engine(EngineProcess):
    """A vLLM engine in one process (scheduler and worker together) unless tensor-parallel."""

    def __init__(
        self,
        model: Model,
        log: Path,
        *,
        address: str | None,
        engine: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        extra_config: dict[str, Any] | None = None,
        connector: dict[str, Any] | None = None,
        wait: bool = True,
    ) -> None:
        options: dict[str, Any] = {
            "max_model_len": 8192,
            "max_num_batched_tokens": 2048,
            "enable_prefix_caching": True,
            "distributed_executor_backend": "uni",
            **model.engine,
            **(engine or {}),
        }
        super().__init__(
            log,
            address=address,
            environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **(environment or {})},
            program=[str(Path(__file__).with_name("engine_child.py"))],
        )
        if connector is None and address is not None:
            connector = patient(extra_config)
        self.start(model.path, options, connector)
        if wait:
            self.started()

    def generate(
        self, prompts: list[list[int]], max_tokens: int = 16, salt: str | None = None
    ) -> list[list[int]]:
        """Tokens per prompt at temperature 0."""
        return self.call("generate", prompts=prompts, max_tokens=max_tokens, salt=salt)["tokens"]

    def external_hits(self) -> int:
        """Prompt tokens that vLLM counted as found by the connector."""
        return int(self.call("metrics").get("external_prefix_cache_hits", 0))

    def loaded_bytes(self) -> int:
        """Bytes that the connector's workers copied out of the arena."""
        return int(self.call("metrics").get("kv_offload_load_bytes", 0))

    def warm_up(self) -> None:
        """The first long prompt of a fresh CPU engine must not be a hit: its kernels settle on it."""
        self.generate([tokens(600, seed=next(_WARM_UP_SEEDS))], max_tokens=4)

    def forget(self) -> None:
        """Empty the engine's own prefix cache, not the connector's."""
        assert self.call("forget")

    def poke(self) -> None:
        """A few steps: an engine in process completes what it stores only when it is stepped."""
        self.generate([tokens(8, seed=0)], max_tokens=2)


class References:
    """What a model answers without kvtier: one engine per model, started when first asked, answers kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._engines: dict[str, Engine] = {}
        self._answers: dict[tuple[str, tuple[int, ...], int], list[int]] = {}

    def tokens(self, model: Model, prompts: list[list[int]], max_tokens: int = 16) -> list[list[int]]:
        missing = [p for p in prompts if (model.kind, tuple(p), max_tokens) not in self._answers]
        if missing and model.kind not in self._engines:
            log = self._directory / f"reference-{model.kind}.log"
            # Nothing is reused inside the reference either.
            self._engines[model.kind] = Engine(
                model, log, address=None, engine={"enable_prefix_caching": False}
            )
        for prompt in missing:  # one by one: no batch either
            answer = self._engines[model.kind].generate([prompt], max_tokens)[0]
            self._answers[model.kind, tuple(prompt), max_tokens] = answer
        return [self._answers[model.kind, tuple(p), max_tokens] for p in prompts]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()
