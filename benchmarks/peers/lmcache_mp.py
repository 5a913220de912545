"""LMCache's multiprocess server, and the client of its own server benchmark on CPU tensors.

That client's calls end after 10 s.
"""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from faces import CHUNK_BYTES, CHUNKS, Face, Seen

TOKENS = 256  # of a chunk
BLOCK = 16  # tokens
SHAPE = "(2,256,16,2,64):float16:2"  # a chunk is 256 KiB
READY_S = 60.0
ENVIRONMENT = {
    "LMCACHE_TRACK_USAGE": "false",
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_LOG_LEVEL": "CRITICAL",
    "OMP_NUM_THREADS": "1",
}
SHM = Path("/dev/shm")


class LMCacheFace:
    def __init__(self, url: str) -> None:
        os.environ.update(ENVIRONMENT)
        import torch
        from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
        from lmcache.cli.commands.bench.server_bench.config import BenchConfig

        self.seen = Seen()
        self._torch = torch
        config = BenchConfig(
            rpc_url=url,
            http_url="",
            mode="cpu",
            transfer_mode="auto",
            tp_size=1,
            use_mla=False,
            num_tokens=TOKENS * CHUNKS,
            kvcache_shape_spec=SHAPE,
            num_blocks=256,
            block_size=BLOCK,
        )
        self._client = ServerBenchClient(config, lambda line: None)
        self._client.start()
        self._blocks = [t.view(torch.int16) for t in self._client._workers[0].kv_caches.values()]
        self._turn = 0

    def store(self, prompt: int) -> None:
        request = self._request(prompt)
        for layer, content in zip(self._blocks, self._content(prompt), strict=True):
            layer[:, 1 : 1 + request.num_blocks] = content
        with self.seen.timed("store"):
            done = self._client.store(request, 0, request.num_full_tokens)
        self._end(request)
        if not done.succeeded:
            raise RuntimeError("store failed")
        self.seen.stored += CHUNKS

    def load(self, prompt: int) -> None:
        request = self._request(prompt)
        with self.seen.timed("lookup"):
            found = self._client.lookup(request)
        if found.error:
            raise RuntimeError(f"lookup: {found.error}")
        hit = found.hit_chunks
        if hit:
            for layer in self._blocks:
                layer[:, 1 : 1 + request.num_blocks] = 0
            with self.seen.timed("retrieve"):
                done = self._client.retrieve(request, 0, hit * TOKENS)
            self._end(request)
            if not done.succeeded:
                raise RuntimeError("retrieve failed")
            self._compare(prompt, hit)
        else:
            self._end(request)

    def _compare(self, prompt: int, hit: int) -> None:
        wide = TOKENS // BLOCK
        right = self._content(prompt)
        for chunk in range(hit):
            blocks = slice(chunk * wide, (chunk + 1) * wide)
            now = [layer[:, 1:][:, blocks] for layer in self._blocks]
            same = all(self._torch.equal(a, b[:, blocks]) for a, b in zip(now, right, strict=True))
            self.seen.wrong += not same
        self.seen.served += hit

    def _request(self, prompt: int) -> object:
        self._turn += 1
        name = f"{os.getpid()}-{self._turn}"
        return dataclasses.replace(self._client.create_request(prompt, name, "trial"), block_offset=1)

    def _end(self, request: object) -> None:
        with self.seen.timed("end_session"):
            self._client.end_session(request)

    def _content(self, prompt: int) -> list[object]:
        generator = self._torch.Generator().manual_seed(prompt)
        shape = (2, CHUNKS * TOKENS // BLOCK, *self._blocks[0].shape[2:])
        kind = self._torch.int16
        # Half floats without infinities and NaN.
        return [self._torch.randint(1, 30000, shape, dtype=kind, generator=generator) for _ in self._blocks]


class LMCacheServer:
    name = "LMCache"

    def __init__(self, disk: bool) -> None:
        self._directory = TemporaryDirectory(prefix="lm-peers-")
        self._disk = Path(self._directory.name, "disk")
        self._disk.mkdir()
        self._shm = f"peers{os.getpid()}"
        self._port, self._http = _free_port(), _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [
            *(sys.executable, "-m", "lmcache.cli.main", "server", "--host", "127.0.0.1"),
            *("--port", str(self._port), "--http-port", str(self._http), "--shm-name", self._shm),
            *("--chunk-size", str(TOKENS), "--l1-size-gb", "0.25", "--no-l1-use-lazy"),
            *("--eviction-policy", "LRU", "--supported-transfer-mode", "auto", "--max-workers", "1"),
        ]
        if disk:
            adapter = {"type": "fs", "base_path": str(self._disk)}
            self._command += ["--l2-adapter", json.dumps(adapter)]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with Path(self._directory.name, "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | ENVIRONMENT
            )
        end_s = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(Path(self._directory.name, "log").read_text()[-2000:])
            time.sleep(0.05)

    start_empty = start  # its memory never outlives it

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def disk_files(self) -> list[Path]:
        return sorted(path for path in self._disk.rglob("*") if path.is_file() and path.stat().st_size > 4096)

    def face(self) -> Callable[[], Face]:
        return partial(LMCacheFace, f"tcp://127.0.0.1:{self._port}")

    def held(self) -> int:
        """Chunks that cannot be cleared: locked."""
        self._get("/cache/clear", "POST")
        for line in self._get("/metrics").splitlines():
            if line.startswith("lmcache_mp_l1_memory_usage_bytes"):
                return int(float(line.rsplit(" ", 1)[1])) // CHUNK_BYTES
        raise RuntimeError("the server has no lmcache_mp_l1_memory_usage_bytes")

    def shm_files(self) -> int:
        return sum(self._shm in path.name for path in SHM.iterdir())

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        for path in SHM.iterdir():
            if self._shm in path.name:
                path.unlink()
        self._directory.cleanup()

    def _answers(self) -> bool:
        try:
            self._get("/")
        except OSError:
            return False
        return True

    def _get(self, path: str, method: str = "GET") -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{self._http}{path}", method=method)
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read().decode()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
