"""How long a launch waits behind copies, on a device with one queue in order for both.

In the fake device's own time, so that the answer is exact: a gigabyte takes 0.1 s, a copy 1 us more.
"""

from typing import Final

import numpy as np

from kvtier.bench.copy_arena import Arena
from kvtier.io import native

PIECE_BYTES: Final = 256 << 10  # the smallest that an engine makes of its own
INFLIGHT_BYTES: Final = 2 << 20
_BYTES_PER_US: Final = 10_000
_THREADS: Final = 32  # a piece each: without a bound, so many are given to the device at once
_TIMEOUT_S: Final = 60.0


def launch_delay_us(arena: Arena, paced: bool) -> float:
    """What is ahead of a launch while stores are being copied, 32 pieces that may go at once."""
    device = native.FakeDevice(
        replaces_buffers=False,
        bytes_per_us=_BYTES_PER_US,
        piece_bytes_max=PIECE_BYTES,
        inflight_bytes_max=INFLIGHT_BYTES if paced else 0,
    )
    total_bytes = _THREADS * PIECE_BYTES
    buffers = np.array([device.make_buffer(total_bytes)], np.uint64)
    engine = native.CopyEngine(None, threads=_THREADS, arena=arena.view, backend=device.backend())
    try:
        blocks = total_bytes // PIECE_BYTES
        layout = engine.add_layout([(0, PIECE_BYTES, PIECE_BYTES)], blocks, 1)
        ids = np.arange(blocks, dtype=np.int64)
        slots = np.zeros(blocks, np.uint32)
        # Every block into the slot of another one's place, so that each is a copy of its own.
        offsets = (ids[::-1] * PIECE_BYTES).astype(np.uint64)
        device.pause("copies")
        for job, one in enumerate(np.split(ids, blocks)):
            engine.submit(job, "store", [layout], [1], one, one, (slots, slots, offsets), buffers=buffers)
        given = INFLIGHT_BYTES // PIECE_BYTES if paced else blocks
        if not device.await_queued("copies", given, _TIMEOUT_S):
            raise TimeoutError(f"{given} copies were not given to the device in {_TIMEOUT_S:g} s")
        device.step(buffers.tolist(), [])
        device.resume("copies")
        if not engine.wait(list(range(blocks)), _TIMEOUT_S) or not device.await_idle("copies", _TIMEOUT_S):
            raise TimeoutError(f"{total_bytes} bytes were not copied in {_TIMEOUT_S:g} s")
        [ahead_ns] = [ahead for kind, _, _, _, ahead, _ in device.log() if kind == "step"]
    finally:
        engine.close()
    return float(ahead_ns) / 1e3


def bound_us() -> float:
    """What may be ahead of it at the most."""
    return INFLIGHT_BYTES / _BYTES_PER_US + INFLIGHT_BYTES // PIECE_BYTES
