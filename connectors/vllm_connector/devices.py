"""Which copy backend serves the tensors of which device, and what a worker must do for it.

    cpu    plain memory
    cuda   addresses that last; a job names the stream whose launches it waits for
    tpu    buffers that every step replaces: named by ordinal and offset, asked for at every job; loads are
           copied in windows between two steps (kvtier's decision 0016)

This is the one table; the worker asks the objects below and knows no device.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kvtier import CudaDevice, PjrtDevice

Region = tuple[int, int, int]  # (address of block 0, bytes between blocks, page bytes)


class DeviceTensors(Protocol):
    """The KV cache's tensors, as one kind of device has them."""

    device: "CudaDevice | PjrtDevice | None"  # for Client.copy_engine
    words: str  # how bytes lie in its memory, for the fingerprint
    windows: bool  # loads need load windows

    def region(self, index: int, page_bytes: int) -> Region:
        """Of the tensor at this index. ValueError when its blocks cannot be copied as they lie."""

    def job_options(self) -> dict[str, Any]:
        """Further arguments of `CopyEngine.submit`, of this moment."""

    def buffers(self) -> Any:
        """For `CopyEngine.load_window`, of this moment."""


class _Addressed:
    """Tensors whose addresses are those that the copy backend takes."""

    device: "CudaDevice | PjrtDevice | None" = None
    words = ""
    windows = False

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tensors

    def region(self, index: int, page_bytes: int) -> Region:
        """See DeviceTensors."""
        tensor = self._tensors[index]
        return tensor.data_ptr(), tensor.stride(0) * tensor.element_size(), page_bytes

    def job_options(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def buffers(self) -> Any:
        """None: addresses do."""
        return None


class HostTensors(_Addressed):
    """Tensors in memory of this process."""


class CudaTensors(_Addressed):
    """Tensors of one GPU."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        from kvtier import CudaDevice

        super().__init__(tensors)
        self._ordinal = tensors[0].device.index or 0
        self.device = CudaDevice(self._ordinal)

    def job_options(self) -> dict[str, Any]:
        """The stream on which the engine launches its steps."""
        import torch

        return {"stream": int(torch.cuda.current_stream(self._ordinal).cuda_stream)}


class TpuTensors:
    """Tensors of torch_tpu."""

    windows = True

    def __init__(self, tensors: Sequence[Any]) -> None:
        from kvtier import TorchTpuTensors

        # Views of one storage have one buffer; the first of them stands for it.
        places: dict[int, int] = {}
        self._ordinals = [places.setdefault(t.untyped_storage().data_ptr(), len(places)) for t in tensors]
        bases = [tensors[self._ordinals.index(ordinal)] for ordinal in range(len(places))]
        self._tensors = tensors
        self._buffers = TorchTpuTensors(bases)
        self._layouts = self._buffers.layouts()
        self.device = self._buffers.device
        kinds = sorted({layout.words for layout in self._layouts})
        self.words = f"tpu {_tpu_name()} {' | '.join(kinds)}"

    def region(self, index: int, page_bytes: int) -> Region:
        """See DeviceTensors."""
        from kvtier import buffer_address

        tensor, ordinal = self._tensors[index], self._ordinals[index]
        layout, logical_bytes = self._layouts[ordinal], tensor.untyped_storage().nbytes()
        if layout.device_bytes != logical_bytes:
            raise ValueError(
                f"the KV cache's tiles are padded ({layout.device_bytes} bytes on the device for "
                f"{logical_bytes}, layout {layout.words}), so its blocks are not where they seem to be"
            )
        size = tensor.element_size()
        offset, stride = tensor.storage_offset() * size, tensor.stride(0) * size
        if any(value % layout.unit_bytes for value in (offset, stride, page_bytes)):
            raise ValueError(
                f"blocks of {page_bytes} bytes at {offset} + n * {stride} cut tiles of the device "
                f"({layout.words}, {layout.unit_bytes} bytes together)"
            )
        return buffer_address(ordinal, offset), stride, page_bytes

    def job_options(self) -> dict[str, Any]:
        """The buffers, which the job holds."""
        return {"buffers": self.buffers()}

    def buffers(self) -> Any:
        """The buffers of this moment."""
        return self._buffers.buffers()


def _tpu_name() -> str:
    """The generation. Pages of the same layout mean the same on any; kept apart all the same."""
    from torch_tpu._internal.utils import hardware

    return str(hardware.get_tpu_device_name())


TENSORS_OF: Mapping[str, Callable[[Sequence[Any]], DeviceTensors]] = {
    "cpu": HostTensors,
    "cuda": CudaTensors,
    "tpu": TpuTensors,
}


def tensors_of(caches: Any) -> DeviceTensors:
    """Of vLLM's CanonicalKVCaches. ValueError where no backend copies from and to their device."""
    tensors = [entry.tensor for entry in caches.tensors]
    kinds = {tensor.device.type for tensor in tensors}
    make = TENSORS_OF.get(next(iter(kinds))) if len(kinds) == 1 else None
    if make is None:
        have = " and ".join(sorted(kinds)) or "no device"
        raise ValueError(f"KV cache on {have}; copy backends are there for {', '.join(TENSORS_OF)}")
    return make(tensors)
