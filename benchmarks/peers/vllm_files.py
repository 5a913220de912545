"""vLLM's own file tier: what its offload does with a chunk's file, in the engine's process, without a server.

The tiers above it refuse a CPU as the device, so its native calls are used as the tier uses them. With no
process to kill or to stop it takes part in `flip` alone.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from faces import CHUNK_BYTES, CHUNKS, Face, Seen


class FilesFace:
    def __init__(self, directory: Path) -> None:
        from vllm import fs_io_C

        self.seen = Seen()
        self._files = fs_io_C
        self._directory = directory
        self._tensors = np.zeros((CHUNKS, CHUNK_BYTES), np.uint8)
        self._views = [memoryview(chunk).cast("B") for chunk in self._tensors]

    def store(self, prompt: int) -> None:
        self._tensors[:] = _content(prompt)
        paths = self._paths(prompt)
        with self.seen.timed("store"):
            self._files.batch_store_block([f"{path}.tmp" for path in paths], paths, self._views, False)
        self.seen.stored += CHUNKS

    def load(self, prompt: int) -> None:
        paths = self._paths(prompt)
        with self.seen.timed("lookup"):
            found = self._files.batch_lookup(paths)
        hit = next((i for i, there in enumerate(found) if not there), len(found))
        self._tensors[:] = 0
        with self.seen.timed("load"):
            self._files.batch_load_block(paths[:hit], self._views[:hit], False)
        same = (self._tensors[:hit] == _content(prompt)[:hit]).all(axis=1)
        self.seen.served += hit
        self.seen.wrong += int((~same).sum())

    def _paths(self, prompt: int) -> list[str]:
        return [str(self._directory / f"{prompt}-{i}.bin") for i in range(CHUNKS)]


class FilesServer:
    """A directory."""

    name = "vLLM files"

    def __init__(self, disk: bool) -> None:
        self._directory = TemporaryDirectory(prefix="vf-peers-")

    @property
    def pid(self) -> int:
        """Of whoever serves: the caller, for want of a server."""
        return os.getpid()

    def start(self) -> None:
        """Nothing runs."""

    start_empty = stop = start

    def kill(self) -> None:
        raise RuntimeError("it has no server")

    def disk_files(self) -> list[Path]:
        return sorted(Path(self._directory.name).glob("*.bin"))

    def face(self) -> Callable[[], Face]:
        return partial(FilesFace, Path(self._directory.name))

    def held(self) -> int:
        """Files that were never finished."""
        return len(list(Path(self._directory.name).glob("*.tmp")))

    def shm_files(self) -> int:
        return 0

    def close(self) -> None:
        self._directory.cleanup()


def _content(prompt: int) -> np.ndarray:
    return np.random.default_rng(prompt).integers(0, 256, (CHUNKS, CHUNK_BYTES), np.uint8)
