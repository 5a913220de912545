"""A paged KV cache on a device, with a mirror in host memory that every step is done to as well."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvtier import TorchTpuTensors

BUFFER = 1 << 44
BLOCKS = 24
PAGE = (8, 64)  # tokens, values: of one layer's keys, and again of its values
PAGE_BYTES = 4 * PAGE[0] * PAGE[1]


class Pool:
    """`kind`: "layer-major" (a tensor per layer, keys before values) or "block-major" (one for all)."""

    def __init__(self, kind: str, device: torch.device, layers: int = 3) -> None:
        self.kind, self.layers = kind, layers
        shapes = [(BLOCKS, layers, 2, *PAGE)] if kind == "block-major" else [(2, BLOCKS, *PAGE)] * layers
        generator = torch.Generator().manual_seed(7)
        self.mirror = [torch.rand(shape, generator=generator) for shape in shapes]
        self.tensors = [one.to(device) for one in self.mirror]
        self.buffers = TorchTpuTensors(self.tensors)

    @property
    def chunk_bytes(self) -> int:
        """Of one block of all layers."""
        return self.layers * 2 * PAGE_BYTES

    def regions(self) -> list[tuple[int, int, int]]:
        if self.kind == "block-major":
            return [(0, self.chunk_bytes, self.chunk_bytes)]
        values = BLOCKS * PAGE_BYTES
        return [
            (ordinal * BUFFER + start, PAGE_BYTES, PAGE_BYTES)
            for ordinal in range(self.layers)
            for start in (0, values)
        ]

    def _blocks(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view whose first dimension is the block."""
        return tensor if self.kind == "block-major" else tensor.transpose(0, 1)

    def step(self, blocks: Sequence[int], value: float) -> None:
        """What an engine's step does: it writes some blocks in place, which moves every buffer."""
        for tensor in (*self.tensors, *self.mirror):
            for block in blocks:
                self._blocks(tensor)[block] += value

    def poison(self, blocks: Sequence[int]) -> None:
        for tensor in (*self.tensors, *self.mirror):
            for block in blocks:
                self._blocks(tensor)[block] = -1.0

    def expect_loaded(self, sources: Sequence[torch.Tensor], blocks: Sequence[int]) -> None:
        """The mirror as it must be after these contents were loaded into the blocks."""
        for tensor, source in zip(self.mirror, sources, strict=True):
            self._blocks(tensor)[list(blocks)] = source

    def contents(self, blocks: Sequence[int]) -> list[torch.Tensor]:
        return [self._blocks(tensor)[list(blocks)].clone() for tensor in self.mirror]

    def check(self) -> None:
        """Every byte of the device is the mirror's, and so is what the device computes of it."""
        for tensor, mirror in zip(self.tensors, self.mirror, strict=True):
            assert torch.equal(tensor.cpu(), mirror)
            device = (self._blocks(tensor) * 2.0).cpu()
            assert torch.equal(device, self._blocks(mirror) * 2.0)


def arrays(blocks: Sequence[int]) -> tuple[Any, Any]:
    """block_ids and block_positions of whole chunks of one block each."""
    return np.array(blocks, np.int64), np.arange(len(blocks), dtype=np.int64)
