"""Codecs on storage through a real daemon: what is asked for, and what is found out for each namespace."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from harness import SETTLE_S, Daemon, keys_of, running_daemon, until

from kvtier import Hit, Namespace
from kvtier.types import NamespaceInfo
from tpu_sync_native import scan_segment

CHUNK = 64 << 10
ROUND = 20
ROUNDS_MAX = 10

# A daemon whose medium is an object store of 4 MB/s.
SLOW = """
import time
from kvtier.io import objects

BYTES_PER_S = 4e6

class SlowWriter:
    def __init__(self, file):
        self._file, self.close, self.abort = file, file.close, file.abort

    def write(self, data):
        time.sleep(len(data) / BYTES_PER_S)
        self._file.write(data)

class Slow(objects.ObjectFiles):
    def __init__(self, url):
        super().__init__("file://{root}")

    def create(self, path):
        return SlowWriter(super().create(path))

    def read(self, path, offset, size):
        time.sleep(size / BYTES_PER_S)
        return super().read(path, offset, size)

objects.ObjectFiles = Slow
from kvtier.cli.main import main
main()
"""


def numbers(key: bytes) -> bytes:
    """16-bit numbers with one exponent: what the shuffles are for."""
    words = np.random.default_rng(list(key)).integers(0, 256, CHUNK // 2, dtype=np.uint16)
    return (words | 0x3F00).astype("<u2").tobytes()


def noise(key: bytes) -> bytes:
    return np.random.default_rng(list(key)).bytes(CHUNK)


def put(ns: Namespace, keys: list[bytes], content: Callable[[bytes], bytes]) -> None:
    with ns.reserve(keys) as write:
        for key, view in zip(write.keys, write.views, strict=True):
            view[:] = content(key)
        assert write.commit()
        assert len(write.keys) == len(keys)


def check(ns: Namespace, keys: list[bytes], content: Callable[[bytes], bytes]) -> None:
    with ns.lease(keys) as read:
        assert read.wait(3 * SETTLE_S)
        assert [bytes(view) for view in read.views] == [content(key) for key in keys]


def info(daemon: Daemon, ns: Namespace) -> NamespaceInfo:
    return next(found for found in daemon.stats().namespaces if found.id == ns.id)


def codecs(root: Path, ns: Namespace) -> set[str]:
    """Of the records that lie there."""
    paths = (root / "v1" / ns.id.hex()).rglob("seg-*.kvs")
    return {record["codec"] for path in paths for record in scan_segment(str(path), True)["records"]}


def kvtier(*arguments: str) -> str:
    command = (sys.executable, "-m", "kvtier.cli.main", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


def test_each_namespace_gets_the_codec_that_pays(root: Path) -> None:
    options = ("--storage", "memory://slow", "--storage-codec", "auto", "--storage-segment", "1MiB")
    kinds = {"numbers": numbers, "noise": noise}
    stored: list[bytes] = []
    with running_daemon("64MiB", *options, code=SLOW.format(root=root)) as daemon:
        with daemon.client() as client, closing(daemon.control()) as control:
            spaces = {kind: client.namespace({"model": kind}, CHUNK) for kind in kinds}
            # Before the medium is known, chunks are written as they are; a round each until it is.
            for turn in range(ROUNDS_MAX):
                stored += (keys := keys_of("found out", ROUND, turn * ROUND))
                for kind, content in kinds.items():
                    put(spaces[kind], keys, content)
                assert control.flush(3 * SETTLE_S)
                found = {kind: info(daemon, ns) for kind, ns in spaces.items()}
                if "lz4" in found["numbers"].storage_codec and found["noise"].storage_codec_tried:
                    break
            assert found["numbers"].storage_codec.startswith("lz4-shuffle")
            assert found["numbers"].storage_codec == found["numbers"].storage_codec_tried
            assert 0.4 < found["numbers"].storage_codec_share < 0.7
            assert 0.4 < found["numbers"].storage_codec_write <= 0.9
            assert 0.4 < found["numbers"].storage_codec_read <= 0.9
            assert found["noise"].storage_codec == "raw"
            assert found["noise"].storage_codec_share == 1
            assert found["noise"].storage_codec_write >= 1

            stored += (keys := keys_of("after", ROUND))
            for kind, content in kinds.items():
                put(spaces[kind], keys, content)
            assert control.flush(3 * SETTLE_S)
            shown = kvtier("stats", "--address", daemon.address)
            for kind, ns in spaces.items():
                assert f"{ns.id.hex()[:12]} {found[kind].storage_codec}: lz4" in shown
            told = json.loads(kvtier("stats", "--address", daemon.address, "--json"))["namespaces"]
            assert {row["storage_codec"] for row in told} == {"raw", found["numbers"].storage_codec}
            until(lambda: daemon.log().count('"tried"') == 2, "each choice is logged")
        assert daemon.stop() == 0
        assert codecs(root, spaces["numbers"]) == {"raw", found["numbers"].storage_codec}
        assert codecs(root, spaces["noise"]) == {"raw"}

        daemon.start(fresh=True)
        with daemon.client() as client:
            for kind, content in kinds.items():
                ns = client.namespace({"model": kind}, CHUNK)
                until(lambda ns=ns: ns.lookup(stored) == Hit(len(stored), 0, len(stored)), "seen on storage")
                check(ns, stored, content)


def test_what_is_asked_for_is_what_is_written(start_daemon: Callable[..., Daemon], root: Path) -> None:
    options = ("--storage", str(root), "--storage-codec", "lz4-shuffle2")
    keys = keys_of("asked for", ROUND)
    daemon = start_daemon("64MiB", *options)
    with daemon.client() as client:
        ns = client.namespace({"model": "numbers"}, CHUNK)
        put(ns, keys, numbers)
        until(lambda: daemon.counters()["storage_demoted_chunks"] == ROUND, "demoted")
        assert info(daemon, ns).storage_codec == "lz4-shuffle2"
        assert info(daemon, ns).storage_codec_tried == ""
        assert "codec    " not in kvtier("stats", "--address", daemon.address)
