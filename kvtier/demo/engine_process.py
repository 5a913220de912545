"""A vLLM engine as a child process, from the parent's side: commands, deadlines, an end by force."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

CONNECTOR = {"kv_connector": "KVTierConnector", "kv_role": "kv_both"}  # what a user writes, and nothing more
START_DEADLINE_S = 240.0
CALL_DEADLINE_S = 180.0

ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; without it the engine asks for nearly all memory
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # more threads than free cores make a CPU engine many times slower
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class EngineFailed(AssertionError):
    """The engine's process ended, did not answer in time or raised; the message holds its log's tail."""


class EngineProcess:
    """One engine and its workers. Leaving the context ends them. Not thread-safe."""

    def __init__(
        self,
        log: Path,
        *,
        address: str | None,  # of a kvtier daemon; None: an engine without kvtier
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "kvtier.demo.engine_child"),
        python: str = sys.executable,
    ) -> None:
        """Start the process; its output goes to `log`. `start` then starts the engine in it.

        python: of the engine's environment, where that is another than this one.
        """
        self._log = log
        self._address = address
        self._command = ""
        environ = {**os.environ, **ENVIRONMENT, **(environment or {})}
        if address is not None:
            environ["KVTIER_ADDRESS"] = address
        ours, theirs = socket.socketpair()
        with log.open("ab") as sink, theirs:
            self.process = subprocess.Popen(
                [python, *program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._channel = ours
        self._stream = ours.makefile("r", encoding="utf-8")

    def start(
        self, model: Path, engine: Mapping[str, Any], connector: Mapping[str, Any] | None = None
    ) -> None:
        """Begin to start the engine (`started` waits for it). `engine`: arguments of vLLM's LLM class."""
        if connector is None and self._address is not None:
            connector = CONNECTOR
        self.send("start", model=str(model), engine=dict(engine), connector=connector and dict(connector))

    def started(self) -> Self:
        """Wait until the engine is up."""
        self.receive(START_DEADLINE_S)
        return self

    def send(self, command: str, **arguments: Any) -> None:
        """Send a command without waiting for its answer; `receive` fetches it."""
        self._command = command
        self._channel.settimeout(CALL_DEADLINE_S)
        self._channel.sendall((json.dumps([command, arguments]) + "\n").encode())

    def receive(self, deadline_s: float = CALL_DEADLINE_S) -> Any:
        """The answer to the last command. Raises EngineFailed; an engine that is late is killed."""
        self._channel.settimeout(deadline_s)
        try:
            line = self._stream.readline()
        except TimeoutError:
            self.kill()
            raise EngineFailed(f"{self._command}: no answer in {deadline_s:g} s\n{self.log_tail()}") from None
        except OSError as error:
            line = ""
            self._command += f" ({error})"
        if not line:
            self.kill()
            raise EngineFailed(
                f"{self._command}: engine ended ({self.process.returncode})\n{self.log_tail()}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{self._command}: {answer['error']}\n{self.log_tail()}")
        return answer["ok"]

    def call(self, command: str, **arguments: Any) -> Any:
        """Send and receive."""
        self.send(command, **arguments)
        return self.receive()

    def log_text(self) -> str:
        """All that the engine has written so far."""
        return self._log.read_text(errors="replace")

    def log_tail(self) -> str:
        """The last 40 lines of it."""
        return "\n".join(self.log_text().splitlines()[-40:])

    def kill(self) -> None:
        """SIGKILL to the engine and its workers; returns when the engine is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self._channel.close()

    def close(self) -> None:
        """An orderly end, by force after 20 s."""
        if self.process.poll() is None:
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
