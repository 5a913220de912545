"""Hosts with storage below their DRAM, and what befalls a storage: bits that turn, a medium that hangs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hosts import Host, running_host

import tpu_sync_native as native


@contextmanager
def storing_host(root: Path, dram: str = "256MiB") -> Iterator[Host]:
    with running_host(dram, "--storage", str(root), "--storage-poll", "200ms") as host:
        yield host


def spoil_segments(root: Path, first: int, last: int | None = None) -> int:
    """Turn a bit in the payload of the records from `first` up to `last`, of every segment. How many."""
    spoiled = 0
    for segment in root.rglob("seg-*.kvs"):
        for record in native.scan_segment(str(segment), False)["records"][first:last]:
            with segment.open("r+b") as file:
                file.seek(record["offset"] + record["stored_bytes"] // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 1]))
            spoiled += 1
    return spoiled


_HANGING = """
import os
from kvtier.io import objects

class Hanging(objects.ObjectFiles):
    def __init__(self, url):
        super().__init__("file://{root}")

    def read(self, path, *asked):
        if path.endswith(".kvs") and os.path.exists("{gate}"):
            open("{gate}").read()
        return super().read(path, *asked)

objects.ObjectFiles = Hanging
from kvtier.cli.main import main
main()
"""


@contextmanager
def hanging_host(root: Path, gate: Path) -> Iterator[Host]:
    """A daemon whose medium hangs in the middle of reading a record, while `hanging(gate)`."""
    code = _HANGING.format(root=root, gate=gate)
    with running_host("256MiB", "--storage", "memory://hangs", code=code) as host:
        yield host


@contextmanager
def hanging(gate: Path) -> Iterator[None]:
    os.mkfifo(gate)
    held = os.open(gate, os.O_RDWR)
    try:
        yield
    finally:
        gate.unlink()
        os.close(held)  # end of file for whoever waits
