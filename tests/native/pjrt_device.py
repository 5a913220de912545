"""A device behind PJRT, without any framework: the test plugin, a client of it, and steps that compute."""

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pypjrt

from tpu_sync_native import _core

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "build/test-plugin/libkvtier_test_pjrt.so"

U8, S32 = 6, 4

# One step of an engine: writes rows of the pool from row `at` on, in place where the runtime lets it.
STEP = """
!pool = tensor<{blocks}x{page}xui8>
!row = tensor<1x{page}xui8>
!at = tensor<i32>
module @step {{
  func.func public @main(%pool: !pool {{tf.aliasing_output = 0 : i32}}, %row: !row, %at: !at) -> !pool {{
    %zero = stablehlo.constant dense<0> : !at
    %next = stablehlo.dynamic_update_slice %pool, %row, %at, %zero : (!pool, !row, !at, !at) -> !pool
    return %next : !pool
  }}
}}
"""


def wrapped_plugin() -> Path:
    """Where the package with the CPU plugin was installed."""
    spec = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    assert spec is not None, "make setup installs lammps-jax-pjrt-cpu"
    assert spec.origin is not None
    return Path(spec.origin).parent / "pjrt_c_api_cpu_plugin.so"


class Plugin:
    """The loaded test plugin; see tpu_sync_native/tests/pjrt_plugin/control.h for the names."""

    def __init__(self) -> None:
        assert PLUGIN.exists(), f"{PLUGIN} is not built: make {PLUGIN.relative_to(ROOT)}"
        os.environ.setdefault("KVTIER_PJRT_CPU_PLUGIN", str(wrapped_plugin()))
        self._library = ctypes.CDLL(str(PLUGIN))
        self._library.kvtier_pjrt_get.restype = ctypes.c_int64
        self._library.kvtier_pjrt_set.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        self.client = pypjrt.Client.create(PLUGIN)

    def set(self, name: str, value: int) -> None:
        self._library.kvtier_pjrt_set(name.encode(), value)

    def ask(self, name: str) -> int:
        return int(self._library.kvtier_pjrt_get(name.encode()))

    def left(self) -> dict[str, int]:
        """What should be gone when nobody uses the device."""
        counts = {name: self.ask(name) for name in ("aliases", "maps", "errors")}
        return {name: count for name, count in counts.items() if count}

    def put(self, data: np.ndarray, kind: int = U8) -> pypjrt.Buffer:
        with self.client.device(0) as device:
            return self.client.buffer_from_host(np.ascontiguousarray(data), kind, data.shape, device)


class Pool:
    """A pool of blocks on the device, which every step replaces, and what it should hold."""

    def __init__(self, plugin: Plugin, blocks: int, page: int) -> None:
        self._plugin = plugin
        self._random = np.random.default_rng(3)
        self.truth = self.bytes(blocks, page)
        self.buffer = plugin.put(self.truth)
        self._step = plugin.client.compile(STEP.format(blocks=blocks, page=page))

    def bytes(self, *shape: int) -> np.ndarray:
        return self._random.integers(0, 256, shape, dtype=np.uint8)

    def step(self, block: int) -> None:
        """Compute new bytes of one block."""
        row = self.bytes(1, self.truth.shape[1])
        old = self.buffer
        (self.buffer,) = self._step(
            old, self._plugin.put(row), self._plugin.put(np.array(block, np.int32), S32)
        )
        old.close()
        self.truth[block] = row[0]

    @property
    def handles(self) -> list[int]:
        return [self.buffer.address]

    def read(self) -> np.ndarray:
        return np.frombuffer(self.buffer.to_host(), np.uint8).reshape(self.truth.shape)


def engine_over(plugin: Plugin, arena: np.ndarray, **options: Any) -> _core.CopyEngine:
    """A copy engine for the plugin's client."""
    threads = options.pop("threads", 2)
    backend = _core.pjrt_backend(str(PLUGIN), client=plugin.client.address, **options)
    return _core.CopyEngine(None, threads=threads, arena=memoryview(arena), backend=backend)
