"""How much slower is a vLLM engine while kvtier stores what it computes?

Three real vLLM engines on CPU, one with kvtier and two without, answer the same batches in turns: four new
prompts each, so that every step's KV is stored, prefill and decode mixed. The time of a batch is the time of
its steps, which are the same on all sides. The model is tiny: it computes little for each byte of KV, which
is the worst case for whoever stores them.

Reference: an engine without kvtier, the same batch. What is shown is the median over the rounds of the ratio
within a round, whose order changes, so that a machine that is slow for a while is slow for all. How much of
it is noise is shown by the last case: the other engine without kvtier.
"""

import time
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from kvtier.bench.daemon import serving
from kvtier.bench.report import BenchSkipped, Budget, Result
from kvtier.bench.scale import Scale
from kvtier.demo import models
from kvtier.demo.engine_process import EngineProcess

STEP: Final = Budget(1.02, of="ratio")
PROMPTS: Final = 4
PROMPT_TOKENS: Final = 1024
ANSWER_TOKENS: Final = 32
_DRAM_BYTES: Final = 512 << 20
_ENGINE: Final = {"max_model_len": 4096, "max_num_batched_tokens": 2048, "enable_prefix_caching": True}
_ADDRESSED: Final = "with"
_SIDES: Final = ("with", "without", "control")
_ORDERS: Final = tuple(permutations(_SIDES))


def run(scale: Scale) -> list[Result]:
    """Batches in turns. BenchSkipped without vLLM."""
    missing = [name for name in ("vllm", "torch", "transformers") if find_spec(name) is None]
    if missing:
        raise BenchSkipped(f"needs {', '.join(missing)}; `make bench` runs in an environment that has them")
    batches = scale.pick(2, 42)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="kvt-bench-")))
        daemon = stack.enter_context(serving(_DRAM_BYTES))
        model = models.make_model("dense", models.default_cache_dir())
        engines = {
            name: stack.enter_context(
                EngineProcess(
                    directory / f"engine-{name}.log",
                    address=address,
                    environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
                )
            )
            for name, address in ((side, daemon.address if side == _ADDRESSED else None) for side in _SIDES)
        }
        for engine in engines.values():
            engine.start(model, _ENGINE)
        for engine in engines.values():
            engine.started()
        random = np.random.default_rng(1)
        for _ in range(2):  # warm-up
            prompts = _prompts(random)
            for engine in engines.values():
                _answer(engine, prompts)
        before = daemon.stats().counters["stored_bytes"]
        times_s: dict[str, list[float]] = {side: [] for side in _SIDES}
        for number in range(batches):
            prompts = _prompts(random)
            for side in _ORDERS[number % len(_ORDERS)]:
                times_s[side].append(_answer(engines[side], prompts))
        stored_bytes = daemon.stats().counters["stored_bytes"] - before
    if stored_bytes == 0:
        raise BenchSkipped("the engine stored nothing; kvtier did not take part")
    return _results(times_s, stored_bytes / batches)


def _results(times_s: dict[str, list[float]], stored_bytes: float) -> list[Result]:
    steps = -(-PROMPTS * PROMPT_TOKENS // _ENGINE["max_num_batched_tokens"]) + ANSWER_TOKENS - 1
    reference_ms = median(times_s["without"]) / steps * 1e3
    ratio = {
        side: median(mine / other for mine, other in zip(times_s[side], times_s["without"], strict=True))
        for side in _SIDES
    }
    what = f"prefill of {PROMPTS} x {PROMPT_TOKENS} and {ANSWER_TOKENS} tokens each"
    case = f"mean step, {what}, {stored_bytes / 2**20:.0f} MiB stored a batch"
    engine = "an engine without kvtier"
    return [
        Result(case, reference_ms * ratio["with"], "ms", engine, reference_ms, STEP),
        Result(f"mean step, {what}, no kvtier", reference_ms * ratio["control"], "ms", engine, reference_ms),
    ]


def _prompts(random: np.random.Generator) -> list[list[int]]:
    shape = (PROMPTS, PROMPT_TOKENS)
    prompts: list[list[int]] = random.integers(models.FIRST_TOKEN, models.VOCABULARY, shape).tolist()
    return prompts


def _answer(engine: EngineProcess, prompts: list[list[int]]) -> float:
    began_s = time.perf_counter()
    engine.call("generate", prompts=prompts, max_tokens=ANSWER_TOKENS)
    return time.perf_counter() - began_s
