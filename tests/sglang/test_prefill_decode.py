"""deploy/prefill_decode.py: two SGLang servers find each other's pages, in one arena or through storage."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from sglang_engines import DEVICE_TOKENS, PAGE_TOKENS, Answers, Engine, request

EXAMPLE = Path(__file__).parents[2] / "deploy" / "prefill_decode.py"
ON_CPU = [
    *("--device", "cpu", "--dtype", "float32", "--skip-tokenizer-init", "--skip-server-warmup"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--random-seed", "1"),
    *("--disable-overlap-schedule", "--disable-cuda-graph", "--mem-fraction-static", "0.1"),
    *("--max-total-tokens", str(DEVICE_TOKENS), "--context-length", str(DEVICE_TOKENS)),
    *("--max-running-requests", "4", "--hicache-ratio", "1.5", "--sleep-on-idle"),
]
PROMPT_TOKENS, ANSWER_TOKENS = 400, 40


@pytest.fixture(scope="module")
def without_cache(
    model_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[tuple[int, ...]], list[int]]:
    """What an engine answers that caches nothing; it runs once for a prompt."""

    @cache
    def answer(prompt: tuple[int, ...]) -> list[int]:
        log = tmp_path_factory.mktemp("reference") / "engine.log"
        with Engine(model_of("dense"), log, address=None) as engine:
            sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
            asked = {**request(prompt), "sampling_params": sampling}
            return Answers.of(engine.call("generate", requests=[asked])).tokens[0]

    return answer


@pytest.mark.trial
@pytest.mark.parametrize("through", ["host", "storage"])
def test_each_engine_finds_what_the_other_computed(
    model_of: Callable[[str], Path], without_cache: Callable[[tuple[int, ...]], list[int]], through: str
) -> None:
    model = model_of("dense")
    command = [sys.executable, str(EXAMPLE), str(model), "--through", through, "--json"]
    command += ["--dram", "64MiB", "--page-size", str(PAGE_TOKENS), "--prompt-tokens", str(PROMPT_TOKENS)]
    command += ["--answer-tokens", str(ANSWER_TOKENS), "--", *ON_CPU]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stderr[-6000:]
    first, rest, again = json.loads(done.stdout.splitlines()[-1])

    def whole(tokens: int) -> int:
        return tokens // PAGE_TOKENS * PAGE_TOKENS

    assert (first["own"], first["kvtier"]) == (0, 0)
    assert (rest["own"], rest["kvtier"]) == (0, whole(PROMPT_TOKENS))
    # Its own prompt the prefill engine still has; of the answer's last token nobody has the KV.
    answered = PROMPT_TOKENS + ANSWER_TOKENS
    assert again["own"] + again["kvtier"] == whole(answered - 1)
    assert again["kvtier"] == whole(answered - 1) - whole(PROMPT_TOKENS)

    assert first["answer"] + rest["answer"] == without_cache(tuple(first["prompt"]))


def test_a_server_that_does_not_start_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "no-model"), "--dram", "64MiB", "--", *ON_CPU]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("the prefill server ended (")
    assert list(tmp_path.glob("kvt*")) == []
