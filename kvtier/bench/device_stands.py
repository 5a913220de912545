"""Devices that this machine has, for the benchmark of them: what copies, and memory to copy from and to."""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from kvtier.client.devices import buffer_address
from kvtier.io import native

_CUDA_LIBRARY: Final = "libcuda.so.1"


class StandAbsent(Exception):
    """The device is not here; the message says what is missing."""


class Memory(Protocol):
    """Device memory in one or several parts."""

    @property
    def addresses(self) -> list[int]:
        """Of each part, in the backend's address space."""

    def buffers(self) -> npt.NDArray[np.uint64] | None:
        """What the runtime calls the parts now; None where addresses last."""


class Stand(Protocol):
    """One kind of device."""

    name: str

    def backend(self) -> native.CopyBackend:
        """To make a copy engine with."""

    def memory(self, parts: int, part_bytes: int) -> Memory:
        """Touched, so that no first use is measured."""

    def close(self) -> None:
        """Give back what `memory` took."""


class _Plain:
    """Parts whose addresses last."""

    def __init__(self, addresses: Sequence[int]) -> None:
        self.addresses = list(addresses)

    def buffers(self) -> None:
        return None


class HostStand:
    """Plain memory, the caller's."""

    name = "host"

    def __init__(self, address: int) -> None:
        self._address = address

    def backend(self) -> native.CopyBackend:
        """Always the same kind."""
        return native.host_backend()

    def memory(self, parts: int, part_bytes: int) -> _Plain:
        """All of it."""
        return _Plain([self._address + part * part_bytes for part in range(parts)])

    def close(self) -> None:
        """The memory is the caller's."""


class _Handles:
    """Parts that are buffers of a runtime."""

    def __init__(self, parts: int, ask: Callable[[], npt.NDArray[np.uint64]]) -> None:
        self.addresses = [buffer_address(part) for part in range(parts)]
        self._ask = ask

    def buffers(self) -> npt.NDArray[np.uint64]:
        return self._ask()


class FakeStand:
    """A device in plain memory whose buffers are replaced and whose queue is in order."""

    name = "fake"

    def __init__(self) -> None:
        self._device = native.FakeDevice()

    def backend(self) -> native.CopyBackend:
        """Of the one device."""
        return self._device.backend()

    def memory(self, parts: int, part_bytes: int) -> _Handles:
        """New buffers; no step replaces them here."""
        handles = np.array([self._device.make_buffer(part_bytes) for _ in range(parts)], np.uint64)
        return _Handles(parts, lambda: handles)

    def close(self) -> None:
        """The device goes with its last user."""


class PjrtStand:
    """Torch tensors on device "tpu", through torch_tpu, whatever plugin it was given."""

    name = "pjrt"

    def __init__(self) -> None:
        if not os.environ.get("TPU_LIBRARY_PATH"):
            raise StandAbsent("TPU_LIBRARY_PATH names no PJRT plugin")
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        try:
            self._torch = import_module("torch")
            loader = import_module("torch_tpu._loader")
        except ImportError as error:
            raise StandAbsent(f"{error}") from error
        # By itself torch_tpu registers the device only where it finds a TPU on the PCI bus.
        loader._init_device("tpu")
        vars(loader)["_LOADED"] = True
        self._tensors = import_module("kvtier.client.torch_tpu").TorchTpuTensors
        self._probe = self._tensors([self._torch.zeros(4096, dtype=self._torch.uint8, device="tpu")])

    def backend(self) -> native.CopyBackend:
        """Of the plugin that torch_tpu uses."""
        return native.pjrt_backend(api=self._probe.device.api, client=self._probe.device.client)

    def memory(self, parts: int, part_bytes: int) -> _Handles:
        """A tensor for each part."""
        torch = self._torch
        tensors = self._tensors(
            [torch.zeros(part_bytes, dtype=torch.uint8, device="tpu") for _ in range(parts)]
        )
        return _Handles(parts, tensors.buffers)

    def close(self) -> None:
        """Tensors go with the memory that has them."""


class CudaStand:
    """The first GPU of this process."""

    name = "cuda"

    def __init__(self, library: str = _CUDA_LIBRARY) -> None:
        self._library = library
        try:
            native.cuda_backend(0, library=library)
        except RuntimeError as error:
            raise StandAbsent(str(error)) from error
        self._driver = ctypes.CDLL(library)
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self._taken: list[int] = []

    def backend(self) -> native.CopyBackend:
        """Of the device's primary context."""
        return native.cuda_backend(0, library=self._library)

    def memory(self, parts: int, part_bytes: int) -> _Plain:
        """In the place of what was taken before."""
        self.close()
        with self._current():
            for _ in range(parts):
                address = ctypes.c_uint64()
                self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(part_bytes))
                self._taken.append(address.value)
        return _Plain(self._taken)

    def close(self) -> None:
        """No engine may use it any more."""
        with self._current():
            for address in self._taken:
                self._call("cuMemFree_v2", ctypes.c_uint64(address))
        self._taken = []

    def _current(self) -> "_CurrentContext":
        return _CurrentContext(self._call, self._context)

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._driver, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: error {result}")


class _CurrentContext:
    def __init__(self, call: Callable[..., None], context: ctypes.c_void_p) -> None:
        self._call, self._context = call, context

    def __enter__(self) -> None:
        self._call("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *exception: object) -> None:
        self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def stands(host_address: int, absent: Callable[[str, str], None]) -> Iterator[Stand]:
    """Those that are here, one after another; `absent` is told of the others, with the reason."""
    makers: dict[str, Callable[[], Stand]] = {
        "host": lambda: HostStand(host_address),
        "fake": FakeStand,
        "pjrt": PjrtStand,
        "cuda": CudaStand,
    }
    for name, make in makers.items():
        try:
            stand = make()
        except StandAbsent as reason:
            absent(name, str(reason))
            continue
        yield stand
        with suppress(RuntimeError):  # a device that has failed says so with its copies
            stand.close()
