"""Memory to copy between: a shared memory file, as the arena is, and anonymous memory, as an engine's is."""

import mmap
import os
from types import TracebackType
from typing import Final, Self

import numpy as np

from kvtier.bench import machine
from kvtier.bench.report import BenchSkipped

_PATTERN: Final = 0x5A


class Arena:
    """Both sides `total_bytes` long and touched, so that no page fault is measured."""

    def __init__(self, total_bytes: int) -> None:
        if machine.free_bytes() < total_bytes * 3:
            raise BenchSkipped(f"needs {total_bytes * 3 >> 20} MiB of free memory")
        self.total_bytes = total_bytes
        fd = os.memfd_create("kvtier-bench", os.MFD_CLOEXEC)
        os.ftruncate(fd, total_bytes)
        self._map = mmap.mmap(fd, total_bytes)
        os.close(fd)
        self.view = memoryview(self._map)
        self._slots = np.frombuffer(self.view, np.uint8)
        self._slots[:] = 0
        self._device_map = mmap.mmap(-1, total_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._device_map.madvise(mmap.MADV_HUGEPAGE)  # as engines' allocators have it
        self._device = np.frombuffer(self._device_map, np.uint8)
        self._device[:] = _PATTERN

    @property
    def address(self) -> int:
        """Of the shared memory."""
        return int(self._slots.ctypes.data)

    @property
    def device_address(self) -> int:
        """Of the other side."""
        return int(self._device.ctypes.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._slots, self._device
        self.view.release()
        self._map.close()
        self._device_map.close()
