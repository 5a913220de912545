"""Devices as Python has them: what docs/DEVICES.md says of them, and CUDA over a fake driver."""

import ctypes
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtier.bench.device_stands import CudaStand, StandAbsent
from kvtier.io import native

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "tpu_sync_native"


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A CUDA driver in host memory, built as the C++ tests do, without sanitizers."""
    compiler = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    library = tmp_path_factory.mktemp("cuda") / "libfake_cuda.so"
    fake = NATIVE / "tests/fake_cuda"
    subprocess.run(
        [shutil.which(compiler.split()[0]) or "c++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread"]
        + [f"-I{fake}", f"-I{NATIVE / 'src'}", "-o", str(library)]
        + [str(source) for source in sorted(fake.glob("*.cc"))],
        check=True,
        timeout=240,
    )
    return str(library)


def table() -> dict[str, dict[str, str]]:
    """The rows of the table of capabilities, by name."""
    lines = (ROOT / "docs/DEVICES.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith(("| name |", "| host |", "| fake |", "| pjrt |", "| cuda |"))
    ]
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:] if len(row) == len(rows[0])}


def as_written(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def test_the_table_names_every_capability() -> None:
    can = native.host_backend().capabilities()
    assert set(table()) == {"host", "fake", "pjrt", "cuda"}
    assert set(table()["host"]) == set(can) - {"kernel"}


@pytest.mark.parametrize("name", ["host", "fake", "cuda"])
def test_the_table_is_what_the_code_says(name: str, fake_cuda: str) -> None:
    backend = {
        "host": native.host_backend,
        "fake": lambda: native.FakeDevice().backend(),
        "cuda": lambda: native.cuda_backend(library=fake_cuda),
    }[name]()
    can = backend.capabilities()
    assert table()[name] == {field: as_written(can[field]) for field in table()[name]}


def test_cuda_says_what_is_missing(fake_cuda: str) -> None:
    with pytest.raises(RuntimeError, match=r"no CUDA driver: /nowhere/libcuda.so.1"):
        native.cuda_backend(library="/nowhere/libcuda.so.1")
    with pytest.raises(RuntimeError, match="device 3: "):
        native.cuda_backend(3, library=fake_cuda)
    with pytest.raises(StandAbsent, match="no CUDA driver"):
        CudaStand("/nowhere/libcuda.so.1")


def test_cuda_moves_blocks_both_ways(fake_cuda: str) -> None:
    stand = CudaStand(fake_cuda)
    page, blocks = 4096, 8
    arena = bytearray(os.urandom(page * blocks))
    original = bytes(arena)
    [address] = stand.memory(1, page * blocks).addresses
    engine = native.CopyEngine(None, threads=2, arena=memoryview(arena), backend=stand.backend())
    assert engine.capabilities()["kernel"] == "fake GPU, pinned memory, batches"
    layout = engine.add_layout([(address, page, page)], blocks, 1)
    ids, none = np.arange(blocks, dtype=np.int64), np.zeros(blocks, np.uint32)
    offsets = ids.astype(np.uint64) * page
    default_stream = 0
    for job, (direction, order) in enumerate((("load", ids), ("store", ids[::-1].copy()))):
        engine.submit(
            job, direction, [layout], [blocks], order, ids, (none, none, offsets), stream=default_stream
        )
        assert engine.wait([job], 60)
        assert [row[:2] for row in engine.poll()] == [(job, True)]
    assert bytes(arena) == b"".join(original[at : at + page] for at in range(page * blocks)[::page][::-1])
    engine.close()
    stand.close()


def test_a_stream_where_there_are_none_is_refused() -> None:
    engine = native.CopyEngine(None, threads=1)
    none = np.zeros(0, np.int64)
    refs = (none.astype(np.uint32), none.astype(np.uint32), none.astype(np.uint64))
    with pytest.raises(ValueError, match="a stream is given, but backend host has none"):
        engine.submit(1, "store", [], [], none, none, refs, stream=0)
    engine.close()


def test_a_device_that_fails_says_why(fake_cuda: str) -> None:
    backend = native.cuda_backend(library=fake_cuda)
    arena = bytearray(4096)
    engine = native.CopyEngine(None, threads=1, arena=memoryview(arena), backend=backend)
    nowhere = 1 << 20
    layout = engine.add_layout([(nowhere, 4096, 4096)], 1, 1)
    zero, none = np.zeros(1, np.int64), np.zeros(1, np.uint32)
    engine.submit(1, "store", [layout], [1], zero, zero, (none, none, np.zeros(1, np.uint64)))
    assert engine.wait([1], 60)
    assert [row[:2] for row in engine.poll()] == [(1, False)]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in backend.last_error()
    engine.close()
    # The driver is the process's: leave it whole for whoever comes next.
    ctypes.CDLL(fake_cuda).fake_cuda_reset()
