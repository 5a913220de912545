"""Torch tensors on device "tpu": which PJRT buffers are behind them at this moment.

torch_tpu keeps no interface for that which is promised to last. So releases are listed here with what was
found in them, a release that is not listed is refused, and two small tensors prove that bytes can be read and
written behind torch's back before any tensor of the engine is touched.
"""

import importlib.metadata
import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from kvtier.client.devices import PjrtDevice, buffer_address, native_backend
from kvtier.errors import InvalidArgument
from kvtier.io import native

U64 = npt.NDArray[np.uint64]


class TpuTensor(Protocol):
    """What is used of a torch.Tensor."""

    @property
    def _cdata(self) -> int: ...
    def cpu(self) -> Any:
        """A copy in host memory."""

    def new_tensor(self, data: Any) -> Any:
        """Another tensor of the same type on the same device."""


@dataclass(frozen=True)
class TensorLayout:
    """Bytes into objects of XLA's C++ client; see tpu_sync_native/src/torch_tpu/tensor_buffers.h."""

    buffer_client: int
    buffer_handle: int
    client_api: int
    client_handle: int


@dataclass(frozen=True)
class DeviceLayout:
    """How one buffer's bytes lie in device memory."""

    device_bytes: int  # with what pads its tiles
    unit_bytes: int  # a tile may mix bytes within so much; whatever begins and ends with units is contiguous
    words: str  # buffers with other words hold the same values as other bytes

    @classmethod
    def of(cls, device_bytes: int, dimensions: list[int], order: list[int], tiles: list[list[int]]) -> Self:
        """order: of the dimensions in memory, minor first; tiles: the first is the largest."""
        tiled = len(tiles[0]) if tiles else 0
        inner = [dimensions[dimension] for dimension in order[:tiled]]
        outer = math.prod(dimensions[dimension] for dimension in order[tiled:])
        in_order = order == sorted(order, reverse=True)
        words = "".join(f"({','.join(map(str, tile))})" for tile in tiles) or "linear"
        if inner:
            words += " of " + ",".join(map(str, inner))
        if not in_order:  # then blocks may be anywhere in it
            return cls(device_bytes, device_bytes, f"{words} order {','.join(map(str, order))}")
        return cls(device_bytes, device_bytes // max(outer, 1) if inner else 1, words)


# torch_tpu's release -> what its objects look like. A new line needs `make test-device` with that release.
TESTED: Mapping[str, TensorLayout] = {
    "0.2.0": TensorLayout(buffer_client=0x08, buffer_handle=0x30, client_api=0x10, client_handle=0x38),
}

_SELF_TEST_TIMEOUT_S = 30.0


class TorchTpuTensors:
    """Some tensors, by ordinal. Their buffers change whenever they are written to: ask at every submit.

    Not thread-safe against writers of the tensors: use it on the thread that launches the engine's steps.
    """

    def __init__(self, tensors: Sequence[TpuTensor]) -> None:
        """InvalidArgument where this torch_tpu cannot be used, in words for the engine's log."""
        if not tensors:
            raise InvalidArgument("no tensors")
        self._tensors = tuple(tensors)  # kept alive: their numbers below are addresses
        self._numbers = [tensor._cdata for tensor in tensors]
        self._native = _open(self._numbers[0])
        self.device = PjrtDevice(api=self._native.api, client=self._native.client)
        _self_test(self._native, self.device, tensors[0])

    def buffers(self) -> U64:
        """What `CopyEngine.submit` and `load_window` take. InvalidArgument when a tensor has none."""
        try:
            return self._native.resolve(self._numbers)
        except RuntimeError as error:
            raise InvalidArgument(str(error)) from error

    def layouts(self) -> list[DeviceLayout]:
        """Of each, how its bytes lie on the device. InvalidArgument where the runtime cannot say."""
        try:
            return [
                DeviceLayout.of(self._native.device_bytes(buffer), *self._native.layout_of(buffer))
                for buffer in map(int, self.buffers())
            ]
        except RuntimeError as error:
            raise InvalidArgument(str(error)) from error


def _open(probe: int) -> native.TorchTpuBuffers:
    try:
        release = importlib.metadata.version("torch_tpu")
    except importlib.metadata.PackageNotFoundError:
        raise InvalidArgument("torch_tpu is not installed, which tensors on device 'tpu' come from") from None
    layout = TESTED.get(release)
    if layout is None:
        raise InvalidArgument(
            f"torch_tpu {release} is not among the releases whose buffers are known: {', '.join(TESTED)}"
        )
    try:
        return native.TorchTpuBuffers(_loaded("libpywrap"), plugin_path(), probe, **asdict(layout))
    except RuntimeError as error:
        raise InvalidArgument(f"torch_tpu {release}: {error}") from error


def plugin_path() -> str:
    """The PJRT plugin that torch_tpu uses: TPU_LIBRARY_PATH, else the libtpu package's."""
    named = os.environ.get("TPU_LIBRARY_PATH")
    if named:
        return named
    package = importlib.util.find_spec("libtpu")
    if package is None or not package.submodule_search_locations:
        raise InvalidArgument("neither TPU_LIBRARY_PATH nor the package libtpu says where the PJRT plugin is")
    return str(Path(package.submodule_search_locations[0]) / "libtpu.so")


def _loaded(prefix: str) -> str:
    """The file of torch_tpu that this process has mapped; it ships one per torch release."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith("/") and Path(path).name.startswith(prefix) and "torch_tpu" in path:
            return path
    raise InvalidArgument("torch_tpu is not loaded in this process, though its tensors are given")


def _self_test(tensors: native.TorchTpuBuffers, device: PjrtDevice, like: TpuTensor) -> None:
    """Store one tensor's bytes and load them into another: torch must then read the same values from both.

    Holds whatever the tiles of the device are, as both have the same.
    """
    values = [[(7 * row + column) % 100 for column in range(1024)] for row in range(8)]
    source, target = like.new_tensor(values), like.new_tensor([[1] * 1024 for _ in range(8)])
    numbers = [source._cdata, target._cdata]
    buffers = tensors.resolve(numbers)
    size = tensors.device_bytes(int(buffers[0]))
    memory = np.zeros(size, np.uint8)
    engine = native.CopyEngine(None, threads=1, arena=memory.data, backend=native_backend(device))
    try:
        layouts = [engine.add_layout([(buffer_address(ordinal), size, size)], 1, 1) for ordinal in range(2)]
        zero, refs = (
            np.zeros(1, np.int64),
            (np.zeros(1, np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.uint64)),
        )
        engine.submit(1, "store", [layouts[0]], [1], zero, zero, refs, buffers=buffers)
        stored = engine.wait([1], _SELF_TEST_TIMEOUT_S)
        buffers = tensors.resolve(numbers)
        engine.submit(2, "load", [layouts[1]], [1], zero, zero, refs, buffers=buffers)
        engine.load_window(buffers, _SELF_TEST_TIMEOUT_S)
        loaded = engine.wait([2], _SELF_TEST_TIMEOUT_S)
        done = {job: ok for job, ok, *_ in engine.poll()}
    finally:
        engine.close()
    if not (stored and loaded and done.get(1) and done.get(2)) or (target.cpu() != source.cpu()).any():
        raise InvalidArgument(
            "what was read from one tensor and written into another did not arrive: no use of these buffers"
        )
