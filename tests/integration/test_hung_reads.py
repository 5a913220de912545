"""A daemon stops, or cannot start, while a call into its storage hangs: whoever comes next gets the arena
only when the process is over, since the call may still write into it; and the process does end."""

import re
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from harness import Daemon, keys_of, load, running_daemon, store, until

from kvtier import DaemonUnavailable

CHUNK = 64 << 10
PRINT = {"model": "hung"}

# A daemon whose object store hangs in every read as soon as there is a file {root}/hang, or in the probe of
# its root as soon as there is {root}/hang-at-start.
HANGING = """
import threading
from pathlib import Path
from kvtier.daemon import storage
from kvtier.io import objects

storage.CHECK_S = 1.0
root = Path("{root}")

def hang(reason):
    if (root / reason).exists():
        (root / "hangs").touch()
        threading.Event().wait()

class Hanging(objects.ObjectFiles):
    def __init__(self, url):
        super().__init__("file://{root}/objects")

    def check_root(self):
        hang("hang-at-start")
        super().check_root()

    def read(self, path, offset, size):
        hang("hang")
        return super().read(path, offset, size)

objects.ObjectFiles = Hanging
from kvtier.cli.main import main
main()
"""


def hanging_daemon(root: Path) -> AbstractContextManager[Daemon]:
    (root / "objects").mkdir()
    options = ("--storage", "memory://hanging", "--storage-segment", "1MiB", "--drain-timeout", "500ms")
    return running_daemon("8MiB", *options, code=HANGING.format(root=root))


def test_a_read_that_hangs_keeps_the_arena_for_as_long_as_the_process_lives(tmp_path: Path) -> None:
    keys = keys_of("hung", 200)  # more than the arena holds
    with hanging_daemon(tmp_path) as daemon:
        with daemon.client() as client, daemon.control() as control:
            ns = client.namespace(PRINT, CHUNK)
            for first in range(0, 200, 20):
                assert store(ns, keys[first : first + 20]) == 20
                assert control.flush(20.0)
            (tmp_path / "hang").touch()
            hit = until(lambda: ns.lookup(keys), "what lies on storage is known")
            assert hit.storage_chunks > 0
            with ns.lease(keys):
                until(lambda: (tmp_path / "hangs").exists(), "a read hangs")
            began = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - began < 10
        assert "storage did not stop in time" in daemon.log()
        # Never given back: it ended with the process.
        assert [Path(path).name for path in daemon.leftovers()] == ["arena.lock"]
        (tmp_path / "hang").unlink()
        daemon.start()
        with daemon.client() as client:
            ns = client.namespace(PRINT, CHUNK)
            until(lambda: ns.lookup(keys).chunks == 200, "storage is known again")
            assert load(ns, keys[:50]) == 50


def test_a_start_that_fails_in_a_hung_probe_keeps_the_arena_too(tmp_path: Path) -> None:
    with hanging_daemon(tmp_path) as daemon:
        with daemon.client() as client:
            assert store(client.namespace(PRINT, CHUNK), keys_of("kept", 5)) == 5
        assert daemon.stop() == 0
        (tmp_path / "hang-at-start").touch()
        began = time.monotonic()
        with pytest.raises(DaemonUnavailable, match="did not answer"):
            daemon.start()
        assert time.monotonic() - began < 15
        assert daemon.process.returncode == 2
        assert [Path(path).name for path in daemon.leftovers()] == ["arena.lock"]
        (tmp_path / "hang-at-start").unlink()
        daemon.start()
        assert daemon.counters()["restart_kept"] == 5


def test_a_stop_in_order_gives_it_back_and_says_what_memory_stays(tmp_path: Path) -> None:
    with hanging_daemon(tmp_path) as daemon:
        assert daemon.stop() == 0
        assert daemon.leftovers() == []
        said = re.search(r'"bytes": (\d+), "free_it": "([^"]+)"', daemon.log())
        assert said, daemon.log()
        in_use = sum(path.stat().st_blocks * 512 for path in daemon.shm_dir.iterdir())
        assert int(said[1]) == in_use > 8 << 20
        assert said[2] == f"kvtier admin destroy --shm-dir {daemon.shm_dir}"
