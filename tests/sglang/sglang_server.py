"""`sglang.launch_server` as an operator runs it, and its administration of the storage backend."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness import until
from sglang_engines import BACKEND, IDLE_S, Answers, engine_options, request

from kvtier.demo.engine_process import CALL_DEADLINE_S, ENVIRONMENT, START_DEADLINE_S

ADMIN_KEY = "for a test"
STORAGE = "/hicache/storage-backend"


class Server:
    """A running one."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def call(
        self, method: str, path: str, body: Any = None, deadline_s: float = CALL_DEADLINE_S
    ) -> tuple[int, str]:
        """Status and text of the answer, whatever they are."""
        asked = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_KEY}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(asked, timeout=deadline_s) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def is_ready(self) -> bool:
        try:
            return self.call("GET", "/health", deadline_s=5)[0] == 200
        except OSError:
            return False

    def generate(self, prompts: Sequence[Sequence[int]]) -> Answers:
        """One prompt after another."""
        return Answers.of([json.loads(self.done("POST", "/generate", request(prompt))) for prompt in prompts])

    def done(self, method: str, path: str, body: Any = None) -> str:
        """A call that must succeed."""
        status, text = self.call(method, path, body)
        assert status == 200, f"{method} {path}: {status} {text}"
        return text

    def forget(self) -> None:
        """Empty the engine's own caches, once it is idle; not kvtier."""
        until(lambda: self.call("POST", "/flush_cache")[0] == 200, "the engine is idle", IDLE_S)

    def attach(self, *, extra: Mapping[str, Any] | None = None, **policies: str) -> tuple[int, str]:
        """Attach kvtier; where it is attached, change the policies alone."""
        body = {
            "hicache_storage_backend": "dynamic",
            "hicache_storage_backend_extra_config_json": json.dumps({**BACKEND, **(extra or {})}),
            **{f"hicache_{name}": policy for name, policy in policies.items()},
        }
        return self.call("PUT", STORAGE, body)

    def metric(self, name: str) -> float:
        """Sum over labels of `sglang:NAME`."""
        lines = self.done("GET", "/metrics").splitlines()
        values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"sglang:{name}{{")]
        assert values, f"no metric {name}"
        return sum(map(float, values))


@contextmanager
def running_server(model: Path, address: str, log: Path) -> Iterator[Server]:
    """Started with kvtier attached; ended with all its processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {
        **engine_options(model, caching=True),
        "admin_api_key": ADMIN_KEY,
        "enable_metrics": True,
        "host": "127.0.0.1",
        "port": port,
    }
    flags = [word for name, value in options.items() for word in _flag(name, value)]
    environ = {**os.environ, **ENVIRONMENT, "KVTIER_ADDRESS": address}
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", *flags],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    server = Server(port)

    def ready() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        return server.is_ready()

    try:
        until(ready, f"the server is up; its log: {log}", START_DEADLINE_S)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    return [flag] if value is True else [flag, str(value)]
