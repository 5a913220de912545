"""The part of `_core` that is about devices. There is no module of this name: it is one file of the stub."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

class CopyBackend:
    """What moves the bytes of one kind of device; made by the functions below, given to a CopyEngine."""

    def capabilities(self) -> dict[str, Any]:
        """name, kernel (what moves large extents), alignment_bytes, piece_bytes_max and inflight_bytes_max
        (0: no limit), plain_memory, buffers, replaces_buffers, in_order_queue: see copy_engine.h."""
    def last_error(self) -> str:
        """Why it failed the last time, empty when it never has."""

def host_backend() -> CopyBackend:
    """Plain memory of this process: device addresses are pointers."""

def pjrt_backend(
    library: str = "",
    *,
    api: int = 0,
    client: int = 0,
    dma_map: bool = True,
    in_order_queue: bool | None = None,
    alignment_bytes: int = 0,
    piece_bytes_max: int = 16 * 2**20,
    inflight_bytes_max: int = 64 * 2**20,
) -> CopyBackend:
    """Buffers behind a PJRT plugin: `library` is its path, or `api` what its GetPjrtApi answered here.

    With `client` (PJRT_Client*) the arena is mapped for direct access where the plugin can, unless dma_map
    is off, and a TPU is known by its name: in_order_queue None and alignment_bytes 0 mean what fits.
    RuntimeError: the plugin cannot be loaded, has an unknown version, or lacks the RawBuffer extension."""

def cuda_backend(ordinal: int = 0, *, library: str = "libcuda.so.1") -> CopyBackend:
    """A GPU of this process through the CUDA driver. RuntimeError: there is no driver, or no such device."""

def pjrt_abi() -> dict[str, Any]:
    """The binary interface as this build declares it, for tests: structs, slots, extension types."""

class TorchTpuBuffers:
    """The PJRT buffers behind torch tensors on device "tpu". Tensors are named by `Tensor._cdata`."""

    def __init__(
        self,
        library: str,
        plugin: str,
        probe: int,
        *,
        buffer_client: int,
        buffer_handle: int,
        client_api: int,
        client_handle: int,
    ) -> None:
        """library: torch_tpu's own; plugin: the PJRT plugin it uses; both loaded. probe: one of its tensors.

        The rest are bytes into objects of XLA's C++ client, which differ between releases of torch_tpu.
        RuntimeError when something is absent or the probe's buffer is not as they say."""
    def resolve(self, tensors: Sequence[int]) -> U64:
        """PJRT_Buffer* of each, valid until the tensor is next written to.

        Waits until what makes them has been launched, not until it is done (GIL released). RuntimeError when
        one has no buffer."""
    def device_bytes(self, buffer: int) -> int:
        """Bytes the device keeps for it, with what pads its tiles."""
    def layout_of(self, buffer: int) -> tuple[list[int], list[int], list[list[int]]]:
        """Its dimensions, their order in memory (minor first), and the tiles."""
    @property
    def api(self) -> int:
        """PJRT_Api*."""
    @property
    def client(self) -> int:
        """PJRT_Client*."""
