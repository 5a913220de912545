"""The part of `_core` that is about devices. There is no module of this name: it is one file of the stub."""

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

# Where a backend has buffers, a device address is (a buffer's ordinal << this) + an offset in it.
DEVICE_BUFFER_SHIFT: Final[int]

class CopyBackend:
    """What moves the bytes of one kind of device; made by the functions below, given to a CopyEngine."""

    def capabilities(self) -> dict[str, Any]:
        """name, kernel (what moves large extents), alignment_bytes, piece_bytes_max and inflight_bytes_max
        (0: no limit), plain_memory, buffers, replaces_buffers, in_order_queue, streams: see copy_engine.h."""
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

class FakeDevice:
    """A device in plain memory that behaves as real ones do at their worst; for tests and benchmarks.

    Its queues, "steps" and "copies", are one where in_order_queue is set. Time is its own, see
    copy/fake_device.h: a copy costs copy_ns and its bytes / bytes_per_us. copies_failing and holds_refused
    are faults in 1000, from `seed`."""

    def __init__(
        self,
        *,
        replaces_buffers: bool = True,
        in_order_queue: bool = True,
        alignment_bytes: int = 1,
        piece_bytes_max: int = 0,
        inflight_bytes_max: int = 0,
        copy_ns: int = 1_000,
        bytes_per_us: int = 10_000,
        seed: int = 1,
        copies_failing: int = 0,
        holds_refused: int = 0,
    ) -> None: ...
    def backend(self) -> CopyBackend: ...
    def make_buffer(self, size_bytes: int) -> int:
        """A buffer of zeros: its handle, as CopyEngine.submit takes it."""
    def read(self, buffer: int) -> bytes: ...
    def write(self, buffer: int, data: bytes) -> None:
        """From the buffer's start, around the queues."""
    def step(
        self,
        buffers: Sequence[int],
        writes: Sequence[tuple[int, int, bytes]],  # (place in `buffers`, offset, bytes)
        cost_ns: int = 0,
        fails: bool = False,
    ) -> list[int]:
        """Launch a step; what lies in the buffers' places from now on (written when the step has run)."""
    def pause(self, queue: Literal["steps", "copies"]) -> None: ...
    def resume(self, queue: Literal["steps", "copies"]) -> None: ...
    def run(self, queue: Literal["steps", "copies"], operations: int) -> None:
        """Let so many operations of a paused queue through."""
    def await_queued(
        self, queue: Literal["steps", "copies"], operations: int, timeout_s: float = 60.0
    ) -> bool:
        """Until so many wait in the queue; False when the time is over first."""
    def await_idle(self, queue: Literal["steps", "copies"], timeout_s: float = 60.0) -> bool: ...
    def fail_copies(self, count: int) -> None: ...
    def held(self) -> int:
        """Holds of its buffers that are alive."""
    def log(self) -> list[tuple[str, int, int, int, int, bool]]:
        """What has been through the queues: (store | load | step, bytes, begin ns, end ns, cost in ns of the
        copies in its queue when a step was launched, ok)."""
