"""Where an engine's tensors are, as `Client.copy_engine` is told."""

from dataclasses import dataclass

from kvtier.errors import InvalidArgument
from kvtier.io import native


@dataclass(frozen=True)
class HostDevice:
    """Plain memory of this process; addresses are pointers."""


@dataclass(frozen=True)
class PjrtDevice:
    """A device behind a PJRT plugin.

    library   path of the plugin this process uses already
    api       address of its PJRT_Api, where the caller knows it; else it is asked of the library
    client    address of the PJRT_Client that owns the tensors: with it the arena is mapped for direct access
    """

    library: str = ""
    api: int | None = None
    client: int | None = None


@dataclass(frozen=True)
class CudaDevice:
    """A CUDA device by its number in this process."""

    ordinal: int = 0


Device = HostDevice | PjrtDevice | CudaDevice


def buffer_address(ordinal: int, offset: int = 0) -> int:
    """For `CopyEngine.add_layout`, on a device with buffers: `offset` bytes into the buffer `ordinal`."""
    return (ordinal << native.DEVICE_BUFFER_SHIFT) + offset


def native_backend(device: Device) -> native.CopyBackend:
    """What copies from and to the device. Raises InvalidArgument when it cannot be had."""
    match device:
        case HostDevice():
            return native.host_backend()
        case PjrtDevice():
            try:
                return native.pjrt_backend(device.library, api=device.api or 0, client=device.client or 0)
            except RuntimeError as error:
                raise InvalidArgument(f"{device}: {error}") from error
        case CudaDevice():
            try:
                return native.cuda_backend(device.ordinal)
            except RuntimeError as error:
                raise InvalidArgument(f"{device}: {error}") from error
