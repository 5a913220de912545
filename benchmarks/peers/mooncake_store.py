"""Mooncake's store on one host: its master, its host client that owns memory and disk, and dummy clients.

A dummy client shares memory with the host client; all three talk over TCP on the loopback interface. The host
client is what dies and hangs in a trial, since the master need not run on the host.
"""

import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from faces import CHUNK_BYTES, CHUNKS, Face, Seen

PROMPT_BYTES = CHUNKS * CHUNK_BYTES
POOL_BYTES = 16 << 20
READY_S = 60.0
SHM = Path("/dev/shm")
QUIET = {"GLOG_minloglevel": "3"}


def _cuda_runtime() -> Path:
    """Mooncake's wheel without CUDA asks for this library, and does not bring it."""
    return Path(str(distribution("nvidia-cuda-runtime-cu12").locate_file("nvidia/cuda_runtime/lib")))


def _environment(disk: Path) -> dict[str, str]:
    ours = {
        "LD_LIBRARY_PATH": str(_cuda_runtime()),
        "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(disk),
        "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": "bucket_storage_backend",
        # A bucket is written when it is full, which by default a trial's never would be.
        "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": str(CHUNKS),
        "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
        "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(64 << 20),
    }
    return os.environ | QUIET | ours


class MooncakeFace:
    def __init__(self, address: str) -> None:
        ctypes.CDLL(str(_cuda_runtime() / "libcudart.so.12"), ctypes.RTLD_GLOBAL)
        os.environ |= QUIET
        from mooncake.store import MooncakeDistributedStore

        self.seen = Seen()
        self._store = MooncakeDistributedStore()
        if code := self._store.setup_dummy(POOL_BYTES, POOL_BYTES, address):
            raise RuntimeError(f"setup_dummy: {code}")
        base = self._store.alloc_from_mem_pool(PROMPT_BYTES)
        if not base or self._store.register_buffer(base, PROMPT_BYTES):
            raise RuntimeError("no buffer in the shared pool")
        memory = (ctypes.c_uint8 * PROMPT_BYTES).from_address(base)
        self._tensors = np.ctypeslib.as_array(memory).reshape(CHUNKS, CHUNK_BYTES)
        self._places = [base + i * CHUNK_BYTES for i in range(CHUNKS)]
        self._sizes = [CHUNK_BYTES] * CHUNKS

    def store(self, prompt: int) -> None:
        self._tensors[:] = _content(prompt)
        with self.seen.timed("put"):
            codes = self._store.batch_put_from(_keys(prompt), self._places, self._sizes)
        self.seen.stored += sum(code == 0 for code in codes)
        if any(codes):
            raise RuntimeError(f"put: {codes}")

    def load(self, prompt: int) -> None:
        keys = _keys(prompt)
        with self.seen.timed("exist"):
            found = self._store.batch_is_exist(keys)
        hit = next((i for i, there in enumerate(found) if there != 1), len(found))
        if not hit:
            return
        self._tensors[:] = 0
        with self.seen.timed("get"):
            sizes = self._store.batch_get_into(keys[:hit], self._places[:hit], self._sizes[:hit])
        for i, (size, right) in enumerate(zip(sizes, _content(prompt), strict=False)):
            if size == CHUNK_BYTES:
                self.seen.served += 1
                self.seen.wrong += not np.array_equal(self._tensors[i], right)


class MooncakeServer:
    name = "Mooncake"

    def __init__(self, disk: bool) -> None:
        self._directory = TemporaryDirectory(prefix="mc-peers-")
        self._disk = Path(self._directory.name, "disk")
        self._disk.mkdir()
        self._master_port, self._metrics_port, self._port = _free_ports(3)
        self._programs = Path(str(distribution("mooncake-transfer-engine-non-cuda").locate_file("mooncake")))
        self._before = set(_shm())
        self._master: subprocess.Popen[bytes] | None = None
        self._client: subprocess.Popen[bytes] | None = None
        offload = f"--enable_offload={str(disk).lower()}"
        self._master_flags = [
            *("--rpc_address=127.0.0.1", f"--rpc_port={self._master_port}", "--metrics_host=127.0.0.1"),
            *(f"--metrics_port={self._metrics_port}", "--enable_metric_reporting=false", offload),
        ]
        self._client_flags = [
            *(f"--master_server_address=127.0.0.1:{self._master_port}", "--metadata_server=P2PHANDSHAKE"),
            *("--host=127.0.0.1", f"--port={self._port}", "--protocol=tcp", "--threads=1"),
            *("--global_segment_size=256 MB", offload),
        ]

    @property
    def pid(self) -> int:
        assert self._client is not None
        return self._client.pid

    def start(self) -> None:
        """The master only when none runs: it outlives a kill."""
        if self._master is None:
            self._master = self._run("mooncake_master", self._master_flags)
            self._await(self._master, self._master_port)
        self._client = self._run("mooncake_client", self._client_flags)
        self._await(self._client, self._port)

    start_empty = start  # its memory never outlives it

    def stop(self) -> None:
        for process in (self._client, self._master):
            if process is not None:
                process.terminate()
                process.wait(30)
        self._client = self._master = None

    def kill(self) -> None:
        assert self._client is not None
        self._client.kill()
        self._client.wait(30)

    def disk_files(self) -> list[Path]:
        return sorted(self._disk.rglob("*.bucket"))

    def face(self) -> Callable[[], Face]:
        return partial(MooncakeFace, f"127.0.0.1:{self._port}")

    def held(self) -> int:
        """Shared memory of clients that it still maps."""
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        return len({line.split(maxsplit=5)[5] for line in maps if "mooncake_shm" in line})

    def shm_files(self) -> int:
        return len(set(_shm()) - self._before)

    def close(self) -> None:
        for process in (self._client, self._master):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(30)
        self._directory.cleanup()

    def _run(self, program: str, flags: list[str]) -> "subprocess.Popen[bytes]":
        path = self._programs / program
        path.chmod(0o755)
        with Path(self._directory.name, "log").open("ab") as log:
            return subprocess.Popen(
                [str(path), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(self._disk),
            )

    def _await(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        end_s = time.monotonic() + READY_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(Path(self._directory.name, "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)


def _shm() -> list[str]:
    return [path.name for path in SHM.iterdir() if "mooncake" in path.name]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def _keys(prompt: int) -> list[str]:
    return [f"{prompt}/{i}" for i in range(CHUNKS)]


def _content(prompt: int) -> np.ndarray:
    return np.random.default_rng(prompt).integers(0, 256, (CHUNKS, CHUNK_BYTES), np.uint8)
