"""Engines as child processes, with a deadline on everything."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Self

from kvtier.demo.models import FIRST_TOKEN, VOCABULARY, make_model

CONNECTOR = {"kv_connector": "KVTierConnector", "kv_role": "kv_both"}
START_DEADLINE_S = 240.0
CALL_DEADLINE_S = 180.0

ENGINE_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # more threads than free cores make a CPU engine many times slower
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


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


def tokens(count: int, seed: int) -> list[int]:
    """A prompt: `count` ordinary token ids, the same for the same seed."""
    draw = Random(seed)
    return [draw.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(count)]


class EngineFailed(AssertionError):
    """The engine's process ended, did not answer in time or raised; the message holds its log's tail."""


class Engine:
    """A vLLM engine in its own process. Use as a context manager: leaving kills what is left."""

    def __init__(
        self,
        model: Model,
        log: Path,
        *,
        address: str | None,  # of a kvtier daemon; None: an engine without kvtier
        engine: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        extra_config: dict[str, Any] | None = None,
        wait: bool = True,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._log = log
        self._call_sent = ""
        environ = {**os.environ, **ENGINE_ENVIRONMENT, **(environment or {})}
        if address is not None:
            environ["KVTIER_ADDRESS"] = address
        with log.open("ab") as sink, theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("engine_child.py")), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._channel = ours
        self._stream = ours.makefile("r", encoding="utf-8")
        connector = None
        if address is not None:
            connector = CONNECTOR | ({"kv_connector_extra_config": extra_config} if extra_config else {})
        options = {"max_model_len": 8192, "max_num_batched_tokens": 2048, "enable_prefix_caching": True}
        self.send("start", model=str(model.path), engine=options | model.engine | (engine or {}), connector=connector)
        if wait:
            self.started()

    def started(self) -> Self:
        """Wait until it is up (several engines start side by side with `wait=False`)."""
        self.receive(START_DEADLINE_S)
        return self

    def send(self, name: str, **arguments: Any) -> None:
        self._call_sent = name
        self._channel.settimeout(CALL_DEADLINE_S)
        self._channel.sendall((json.dumps([name, arguments]) + "\n").encode())

    def receive(self, deadline_s: float = CALL_DEADLINE_S) -> Any:
        self._channel.settimeout(deadline_s)
        try:
            line = self._stream.readline()
        except TimeoutError:
            self.kill()
            raise EngineFailed(f"{self._call_sent}: no answer in {deadline_s:g} s\n{self.log_tail()}") from None
        if not line:
            self.process.wait(10)
            raise EngineFailed(f"{self._call_sent}: engine ended ({self.process.returncode})\n{self.log_tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{self._call_sent}: {answer['error']}\n{self.log_tail()}")
        return answer["ok"]

    def call(self, name: str, **arguments: Any) -> Any:
        self.send(name, **arguments)
        return self.receive()

    def generate(self, prompts: list[list[int]], max_tokens: int = 16, salt: str | None = None) -> list[list[int]]:
        """Tokens per prompt at temperature 0."""
        return self.call("generate", prompts=prompts, max_tokens=max_tokens, salt=salt)["tokens"]

    def external_hits(self) -> int:
        """Prompt tokens that vLLM counted as found by the connector."""
        return int(self.call("metrics").get("external_prefix_cache_hits", 0))

    def poke(self) -> None:
        """A few steps: an engine in process completes what it stores only when it is stepped."""
        self.generate([tokens(8, seed=0)], max_tokens=2)

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-40:])

    def kill(self) -> None:
        """SIGKILL to the engine and its workers; returns when the engine is gone."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
        self._channel.close()

    def close(self) -> None:
        """An orderly end, with a deadline."""
        if self.process.poll() is None:
            self._channel.shutdown(socket.SHUT_WR)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class References:
    """What a model answers without kvtier: one engine per model, started when first asked, answers kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._engines: dict[str, Engine] = {}
        self._answers: dict[tuple[str, tuple[int, ...], int], list[int]] = {}

    def tokens(self, model: Model, prompts: list[list[int]], max_tokens: int = 16) -> list[list[int]]:
        missing = [p for p in prompts if (model.kind, tuple(p), max_tokens) not in self._answers]
        if missing:
            engine = self._engines.get(model.kind)
            if engine is None:
                log = self._directory / f"reference-{model.kind}.log"
                # Nothing is reused inside the reference either.
                engine = Engine(model, log, address=None, engine={"enable_prefix_caching": False})
                self._engines[model.kind] = engine
            for prompt in missing:
                self._answers[model.kind, tuple(prompt), max_tokens] = engine.generate([prompt], max_tokens)[0]
        return [self._answers[model.kind, tuple(p), max_tokens] for p in prompts]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


def wait_until(condition: Any, what: str, deadline_s: float = 20.0, pause: Any = None) -> None:
    """Ask again until it holds; `pause` is called between (default: 20 ms of sleep)."""
    limit = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        if pause is None:
            time.sleep(0.02)
        else:
            pause()
