"""The OpenAI server, with the one flag that a user gives it."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

from engines import BYTES_PER_TOKEN, patient, tokens
from harness import until

from kvtier.demo.engine_process import ENVIRONMENT

PROMPT_TOKENS = 4100
WHOLE_CHUNKS_TOKENS = 4096


def test_a_restarted_server_hits(host, dense, references, tmp_path):
    prompt = tokens(PROMPT_TOKENS, seed=1)
    expected = references.tokens(dense, [prompt])[0]
    with _server(dense, host, tmp_path / "first.log") as server:
        assert server.complete(tokens(600, seed=2), 4)
        assert server.complete(prompt, 16) == expected
        assert server.metric("external_prefix_cache_hits_total") == 0
        host.wait_for(lambda: host.stored_bytes() >= WHOLE_CHUNKS_TOKENS * BYTES_PER_TOKEN["dense"], "stored")
        until(lambda: not host.leased(), "all leases are back")
    host.assert_nothing_held()

    # Which kernels wrote the pages came from the worker's process; people read the model's name.
    [namespace] = host.stats().namespaces
    kernels = json.loads(namespace.fingerprint_json)["kernels"]
    assert [words.rpartition(".")[2] for words in kernels] == ["CPUAttentionBackend vec"]
    assert namespace.label == f"{dense.path.name} float32"
    first_log = (tmp_path / "first.log").read_text()
    for role in ("scheduler", "worker0"):  # in the engine's own log, once
        assert first_log.count(f"kvtier: vllm/{role} attached to {host.address}") == 1

    with _server(dense, host, tmp_path / "second.log") as server:
        assert server.complete(tokens(600, seed=3), 4)
        assert server.complete(prompt, 16) == expected
        assert server.metric("external_prefix_cache_hits_total") == WHOLE_CHUNKS_TOKENS
        assert server.metric("kv_offload_load_bytes_total") >= WHOLE_CHUNKS_TOKENS * BYTES_PER_TOKEN["dense"]
        until(lambda: not host.leased(), "all leases are back")


class _Server:
    def __init__(self, port):
        self._url = f"http://127.0.0.1:{port}"

    def complete(self, prompt, max_tokens):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(
            f"{self._url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)["choices"][0]["token_ids"]

    def metric(self, name):
        """Sum over labels of `vllm:NAME`."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=20) as reply:
            lines = reply.read().decode().splitlines()
        values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"vllm:{name}{{")]
        assert values, f"no metric {name}"
        return sum(map(float, values))

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False


@contextmanager
def _server(model, host, log):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    vllm = Path(sys.executable).with_name("vllm")
    command = [str(vllm), "serve", str(model.path), "--kv-transfer-config", json.dumps(patient())]
    command += [
        "--served-model-name",
        "tiny",
        "--skip-tokenizer-init",
        "--dtype",
        "float32",
        "--enforce-eager",
    ]
    command += ["--max-model-len", "8192", "--host", "127.0.0.1", "--port", str(port)]
    environ = {**os.environ, **ENVIRONMENT, "KVTIER_ADDRESS": host.address, "VLLM_LOGGING_LEVEL": "INFO"}
    with log.open("ab") as sink:
        process = subprocess.Popen(command, env=environ, stdout=sink, stderr=sink, start_new_session=True)
    server = _Server(port)

    def ready():
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        return server.is_ready()

    try:
        until(ready, f"vllm serve is up; its log: {log}", timeout_s=240)
        yield server
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        with suppress(ProcessLookupError):  # with its engine, which may outlive it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
