"""A vLLM and an SGLang engine of one model, on one daemon at once: each finds its own, `kvtier stats` tells
which is which."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from harness import PATIENT_MS
from hosts import Host, running_host
from sglang_engines import PAGE_TOKENS, Engine

from kvtier.demo.engine_process import CONNECTOR, EngineProcess
from kvtier.demo.models import FIRST_TOKEN, VOCABULARY

pytestmark = pytest.mark.trial

VLLM_PYTHON = Path(__file__).parents[2] / ".envs" / "vllm" / "bin" / "python"
CHUNK_TOKENS = 256  # of the vLLM connector


def tokens(length: int, seed: int) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(length)]


PROMPTS = [tokens(600, seed) for seed in range(2)]
CHUNKS = len(PROMPTS) * (600 // CHUNK_TOKENS)
PAGES = len(PROMPTS) * (600 // PAGE_TOKENS)


class VllmEngine(EngineProcess):
    """A vLLM engine in one process, in vLLM's own environment."""

    def __init__(self, model: Path, log: Path, address: str) -> None:
        # SGLang's stand-ins are not for it.
        environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONPATH": ""}
        super().__init__(log, address=address, environment=environment, python=str(VLLM_PYTHON))
        options = {"max_model_len": 2048, "enable_prefix_caching": True}
        extra = {"kv_connector_extra_config": {"deadline_ms": PATIENT_MS}}
        self.start(model, {**options, "distributed_executor_backend": "uni"}, {**CONNECTOR, **extra})

    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        return self.call("generate", prompts=prompts, max_tokens=12)["tokens"]

    def poke(self) -> None:
        """What it stores is complete when it is stepped."""
        self.generate([tokens(8, seed=0)])


@pytest.fixture
def host() -> Iterator[Host]:
    with running_host() as started:
        yield started


@pytest.fixture
def sglang(host: Host, model_of: Callable[[str], Path], tmp_path: Path) -> Iterator[Engine]:
    with Engine(model_of("dense"), tmp_path / "sglang.log", address=host.address) as engine:
        yield engine


@pytest.fixture
def vllm(host: Host, model_of: Callable[[str], Path], tmp_path: Path) -> Iterator[VllmEngine]:
    with VllmEngine(model_of("dense"), tmp_path / "vllm.log", host.address) as engine:
        engine.started()
        engine.generate([tokens(600, seed=99)])  # a fresh CPU engine's first long prompt must not be a hit
        yield engine


def stats(host: Host, *options: str) -> str:
    command = [sys.executable, "-c", "from kvtier.cli.main import main; main()", "stats", *options]
    done = subprocess.run(
        [*command, "--address", host.address], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.skipif(not VLLM_PYTHON.exists(), reason="no vLLM environment; `make test-sglang` makes it")
def test_both_engines_on_one_daemon(host: Host, vllm: VllmEngine, sglang: Engine) -> None:
    ours, theirs = sglang.generate(PROMPTS), vllm.generate(PROMPTS)
    vllm_chunks = CHUNKS + 600 // CHUNK_TOKENS  # with the first prompt's
    host.wait_for(lambda: host.chunks() >= PAGES + vllm_chunks, "both have stored", vllm)
    host.settle(vllm)

    sglang.forget()
    assert vllm.call("forget")
    again = sglang.generate(PROMPTS)
    assert again.same_as(ours)
    assert min(again.from_storage) >= 600 - 2 * PAGE_TOKENS, again.from_storage
    assert vllm.generate(PROMPTS) == theirs
    assert vllm.call("metrics")["external_prefix_cache_hits"] == CHUNKS * CHUNK_TOKENS
    host.settle(vllm)

    record = json.loads(stats(host, "--json"))
    by_engine = {item["fingerprint"]["engine"]: item for item in record["namespaces"]}
    assert set(by_engine) == {"sglang", "vllm"}
    assert len(record["namespaces"]) == 2
    assert by_engine["vllm"]["hits"] == CHUNKS
    assert by_engine["vllm"]["chunks"] >= vllm_chunks
    assert PAGES - len(PROMPTS) <= by_engine["sglang"]["hits"] <= PAGES
    assert by_engine["sglang"]["chunks"] >= PAGES
    clients = {session["client"].partition("/")[0] for session in record["sessions"]}
    assert clients == {"sglang", "vllm"}

    rows = {line.split()[1]: line for line in stats(host).splitlines() if len(line.split()) > 5}
    assert f" {by_engine['vllm']['chunks']:,} " in rows["vllm"]
    assert f" {by_engine['sglang']['chunks']:,} " in rows["sglang"]
