"""Tensors of torch_tpu: what is refused before anything is touched. The rest needs them: tests/device."""

import importlib.metadata
from types import SimpleNamespace
from typing import Any

import pytest

from kvtier import InvalidArgument, TorchTpuTensors
from kvtier.client import torch_tpu
from kvtier.client.torch_tpu import DeviceLayout, plugin_path

TENSOR = SimpleNamespace(_cdata=0)


@pytest.mark.parametrize(
    ("bytes_", "dimensions", "order", "tiles", "unit", "words"),
    [
        (1024, [8, 4, 8], [2, 1, 0], [], 1, "linear"),
        # Planes of 16 tokens of 128 values: tiles mix the bytes within one, never beyond.
        (32 * 2 * 8192, [32, 2, 16, 128], [3, 2, 1, 0], [[8, 128]], 8192, "(8,128) of 128,16"),
        (32 * 2 * 4096, [32, 2, 16, 128], [3, 2, 1, 0], [[8, 128], [2, 1]], 4096, "(8,128)(2,1) of 128,16"),
        # Blocks and rows are one plane: no block is contiguous.
        (32 * 512, [32, 128], [1, 0], [[8, 128]], 32 * 512, "(8,128) of 128,32"),
        # The block is not the dimension that varies most slowly.
        (1024, [8, 4, 8], [0, 2, 1], [], 1024, "linear order 0,2,1"),
    ],
)
def test_what_a_tile_mixes(
    bytes_: int, dimensions: list[int], order: list[int], tiles: list[list[int]], unit: int, words: str
) -> None:
    assert DeviceLayout.of(bytes_, dimensions, order, tiles) == DeviceLayout(bytes_, unit, words)


def release(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    def version(_name: str) -> str:
        if answer is None:
            raise importlib.metadata.PackageNotFoundError("torch_tpu")
        return str(answer)

    monkeypatch.setattr(torch_tpu.importlib.metadata, "version", version)


@pytest.mark.parametrize(
    ("installed", "said"),
    [("9.9.9", "9.9.9 is not among .*: 0.2.0"), (None, "not installed"), ("0.2.0", "not loaded")],
)
def test_releases_that_are_not_known_are_refused(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, said: str
) -> None:
    release(monkeypatch, installed)
    with pytest.raises(InvalidArgument, match=said):
        TorchTpuTensors([TENSOR])


def test_no_tensors_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="no tensors"):
        TorchTpuTensors([])


def test_the_plugin_is_found_as_torch_tpu_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/some/plugin.so")
    assert plugin_path() == "/some/plugin.so"
    monkeypatch.delenv("TPU_LIBRARY_PATH")
    found = SimpleNamespace(submodule_search_locations=["/packages/libtpu"])
    monkeypatch.setattr(torch_tpu.importlib.util, "find_spec", lambda _name: found)
    assert plugin_path() == "/packages/libtpu/libtpu.so"
    monkeypatch.setattr(torch_tpu.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InvalidArgument, match="TPU_LIBRARY_PATH"):
        plugin_path()
