"""Real tensors on torch's device "tpu", run by a CPU: torch_tpu over the PJRT plugin of the tests.

One process has one PJRT client, so all tests of a run share it; what a test sets in the plugin ends with it.
"""

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "build" / "test-plugin" / "libkvtier_test_pjrt.so"
SETTINGS = ("bytes_per_s", "latency_us", "launches_in_queue", "queue_gate", "ready_gate", "strict")

sys.path.insert(0, str(Path(__file__).parent))


def _cpu_plugin() -> Path:
    package = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    assert package is not None, "run `make test-device`, which makes the environment of these tests"
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "pjrt_c_api_cpu_plugin.so"


# Before anything imports torch.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
os.environ["KVTIER_PJRT_CPU_PLUGIN"] = str(_cpu_plugin())
os.environ["TPU_LIBRARY_PATH"] = str(PLUGIN)


class Plugin:
    """The test plugin's settings and counters; see its control.h."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(PLUGIN))
        self._library.kvtier_pjrt_set.argtypes = (ctypes.c_char_p, ctypes.c_int64)
        self._library.kvtier_pjrt_get.argtypes = (ctypes.c_char_p,)
        self._library.kvtier_pjrt_get.restype = ctypes.c_int64

    def set(self, name: str, value: int) -> None:
        self._library.kvtier_pjrt_set(name.encode(), value)

    def get(self, name: str) -> int:
        return int(self._library.kvtier_pjrt_get(name.encode()))


@pytest.fixture(scope="session")
def tpu() -> Any:
    """torch's device "tpu". torch_tpu registers it by itself where it finds a TPU on the PCI bus."""
    assert PLUGIN.exists(), "run `make test-device`, which builds the plugin"
    import torch
    from torch_tpu import _loader

    _loader._init_device("tpu")
    _loader._LOADED = True
    return torch.device("tpu")


@pytest.fixture
def plugin(tpu: Any) -> Iterator[Plugin]:
    one = Plugin()
    yield one
    for name in SETTINGS:
        one.set(name, 0)
