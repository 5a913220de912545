"""kvtier's copy engine and TPU Sync's KVCacheOffloader on the same blocks; see README.md beside this file."""

import argparse
import ctypes
import importlib.util
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "build/test-plugin/libkvtier_test_pjrt.so"
LAYERS = 8
TOTAL_BYTES = 64 << 20
PAGES_BYTES = (16 << 10, 64 << 10, 256 << 10)
ROUNDS = 15
TIMEOUT_S = 60.0
WINDOW_S = 1.0


def open_tpu() -> None:
    """Device "tpu" of torch: a TPU's, else the plugin of the tests."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if "TPU_LIBRARY_PATH" not in os.environ:
        if not PLUGIN.exists():
            sys.exit(f"{PLUGIN.relative_to(ROOT)} is not built: see README.md")
        package = importlib.util.find_spec("lammps_jax_pjrt_cpu")
        assert package is not None
        assert package.submodule_search_locations
        base = Path(package.submodule_search_locations[0]) / "pjrt_c_api_cpu_plugin.so"
        os.environ["KVTIER_PJRT_CPU_PLUGIN"] = str(base)
        os.environ["TPU_LIBRARY_PATH"] = str(PLUGIN)
        # TPU Sync and kvtier then both keep a TPU's rules.
        ctypes.CDLL(str(PLUGIN)).kvtier_pjrt_set(b"tpu", ctypes.c_int64(1))
    from torch_tpu import _loader

    _loader._init_device("tpu")
    vars(_loader)["_LOADED"] = True


class Pool:
    """Host memory with a place for each block; a runtime maps it once, so either side has its own."""

    def __init__(self, page_bytes: int) -> None:
        import torch

        self._object_bytes = LAYERS * page_bytes
        self._page_bytes = page_bytes
        self.map = mmap.mmap(-1, TOTAL_BYTES)
        self.bytes = torch.frombuffer(self.map, dtype=torch.int8)
        self.bytes.zero_()

    def object_of(self, place: int) -> Any:
        """One block of all layers."""
        one = self.bytes[place * self._object_bytes : (place + 1) * self._object_bytes]
        return one.view(1, LAYERS, self._page_bytes)


class Blocks:
    """A layer-major KV cache on the device."""

    def __init__(self, page_bytes: int) -> None:
        import torch

        self.page_bytes = page_bytes
        self.count = TOTAL_BYTES // LAYERS // page_bytes
        generator = torch.Generator().manual_seed(1)
        shape = (self.count, 16, page_bytes // 16)
        self.mirror = [
            torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator) for _ in range(LAYERS)
        ]
        self.tensors = [one.to("tpu") for one in self.mirror]

    def check_stored(self, pool: Pool, order: list[int]) -> None:
        """Block order[i] of every layer lies at place i."""
        for place, block in enumerate(order):
            for layer in range(LAYERS):
                stored = pool.object_of(place)[0, layer]
                assert bool((stored == self.mirror[layer][block].reshape(-1)).all()), (place, layer)

    def check_loaded(self, pool: Pool, order: list[int]) -> None:
        """Every block of the device is what its place has."""
        for layer, tensor in enumerate(self.tensors):
            now = tensor.cpu()
            for place, block in enumerate(order):
                assert bool((now[block].reshape(-1) == pool.object_of(place)[0, layer]).all()), (place, layer)


class TpuSync:
    """Google's."""

    def __init__(self, blocks: Blocks, order: list[int]) -> None:
        from tpu_sync.api.torch.kv_cache_offloader import KVCacheOffloader

        self.pool = Pool(blocks.page_bytes)
        self._engine = KVCacheOffloader(blocks.tensors, blocks.page_bytes)
        self._engine.map_shared_memory(self.pool.bytes.data_ptr(), TOTAL_BYTES)
        self._order = order
        self._objects = [self.pool.object_of(place) for place in range(len(order))]

    def store(self) -> None:
        """Device to host."""
        self._engine.d2h(self._order, self._objects, 0).wait()

    def load(self) -> None:
        """Host to device."""
        self._engine.h2d(self._order, self._objects, 0).wait()

    def close(self) -> None:
        """The pool may go."""
        self._engine.unmap_shared_memory()


class Kvtier:
    """Ours."""

    def __init__(self, blocks: Blocks, order: list[int], threads: int) -> None:
        import numpy as np

        from kvtier import TorchTpuTensors, buffer_address
        from kvtier.client.devices import native_backend
        from kvtier.io import native

        self.pool = Pool(blocks.page_bytes)
        self._tensors = TorchTpuTensors(blocks.tensors)
        self._engine = native.CopyEngine(
            None,
            threads=threads,
            arena=memoryview(self.pool.map),
            backend=native_backend(self._tensors.device),
        )
        page = blocks.page_bytes
        regions = [(buffer_address(layer), page, page) for layer in range(LAYERS)]
        self._layout = self._engine.add_layout(regions, blocks.count, 1)
        self._blocks = np.array(order, np.int64)
        self._places = np.arange(len(order), dtype=np.int64)
        none = np.zeros(len(order), np.uint32)
        self._refs = (none, none, self._places.astype(np.uint64) * (LAYERS * page))
        self._job = 0

    def _submit(self, direction: Any) -> int:
        self._job += 1
        self._engine.submit(
            self._job,
            direction,
            [self._layout],
            [len(self._blocks)],
            self._blocks,
            self._places,
            self._refs,
            buffers=self._tensors.buffers(),
        )
        return self._job

    def _finish(self, job: int) -> None:
        assert self._engine.wait([job], TIMEOUT_S)
        assert [row[:2] for row in self._engine.poll()] == [(job, True)]

    def store(self) -> None:
        """Device to host."""
        self._finish(self._submit("store"))

    def load(self) -> None:
        """Host to device, in as many windows as it takes."""
        job = self._submit("load")
        while not self._engine.load_window(self._tensors.buffers(), WINDOW_S):
            pass
        self._finish(job)

    def close(self) -> None:
        """The pool may go."""
        self._engine.close()


def gbps(call: Callable[[], None]) -> float:
    """Of everything."""
    began = time.perf_counter()
    call()
    return TOTAL_BYTES / (time.perf_counter() - began) / 1e9


def compare(page_bytes: int, threads: int) -> list[dict[str, Any]]:
    """Both directions; every block once, in an order without neighbours."""
    import random

    blocks = Blocks(page_bytes)
    order = list(range(blocks.count))
    random.Random(1).shuffle(order)
    sides: dict[str, Any] = {
        "kvtier": Kvtier(blocks, order, threads),
        "TPU Sync": TpuSync(blocks, order),
    }
    for side in sides.values():
        side.store()
        blocks.check_stored(side.pool, order)
        for _ in range(2):  # other bytes into the same blocks, and these again
            side.pool.bytes.bitwise_xor_(0x55)
            side.load()
            blocks.check_loaded(side.pool, order)
    rows = []
    for direction in ("store", "load"):
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            for name, side in sides.items():
                rates[name].append(gbps(getattr(side, direction)))
        rows.append(
            {
                "case": f"{direction}, pages of {page_bytes >> 10} KiB, {LAYERS} layers",
                "kvtier_gbps": median(rates["kvtier"]),
                "tpu_sync_gbps": median(rates["TPU Sync"]),
                "ratio": median(a / b for a, b in zip(rates["kvtier"], rates["TPU Sync"], strict=True)),
                "ratio_of_best": max(rates["kvtier"]) / max(rates["TPU Sync"]),
            }
        )
    for side in sides.values():
        side.close()
    return rows


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--threads", type=int, default=1, help="kvtier's copy threads (default: 1)")
    asked = parser.parse_args()
    open_tpu()
    rows = [row for page_bytes in PAGES_BYTES for row in compare(page_bytes, asked.threads)]
    if asked.json:
        print(json.dumps({"name": "tpu_sync", "results": rows}))
    else:
        for row in rows:
            print(
                f"{row['case']:<38} kvtier {row['kvtier_gbps']:5.2f} GB/s, "
                f"TPU Sync {row['tpu_sync_gbps']:5.2f} GB/s, "
                f"ratio {row['ratio']:.2f} (of the best rounds {row['ratio_of_best']:.2f})"
            )
    sys.stdout.flush()
    os._exit(0)  # neither runtime's threads end in an orderly way


if __name__ == "__main__":
    main()
