"""The daemon is killed and started again: what was committed is served, nothing else is, nothing leaks."""

import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness import SETTLE_S, Daemon, child, keys_of, line_of, load, store, until

from kvtier import Client, DaemonUnavailable, Namespace

StartDaemon = Callable[..., Daemon]

CHUNK = 64 << 10
PRINT = {"model": "warm"}


def namespace_of(client: Client) -> Namespace:
    return client.namespace(PRINT, CHUNK)


def logged(daemon: Daemon, event: str) -> str:
    """The last line of its log about `event`."""
    lines = [line for line in daemon.log().splitlines() if f'"event": "{event}"' in line]
    assert lines, daemon.log()
    return lines[-1]


# ---- kept ----


@pytest.mark.parametrize("orderly", [False, True])
def test_committed_chunks_are_served_by_the_next_daemon(daemon: Daemon, orderly: bool) -> None:
    keys = keys_of("kept", 50)
    with daemon.client() as client:
        assert store(namespace_of(client), keys) == 50
    arena = (daemon.shm_dir / "arena.data").stat().st_ino
    if orderly:
        assert daemon.stop() == 0
    else:
        daemon.kill()
    daemon.start()
    assert (daemon.shm_dir / "arena.data").stat().st_ino == arena
    counters = daemon.counters()
    assert counters["restart_kept"] == counters["committed_slots"] == 50
    assert counters["restarts"] == 1
    assert '"kept": 50' in logged(daemon, "kept the arena of an earlier daemon")
    # Known before any engine has opened it again.
    (unopened,) = daemon.stats().namespaces
    assert (unopened.chunks, unopened.chunk_bytes) == (50, CHUNK)
    with daemon.client() as client:
        ns = namespace_of(client)
        assert load(ns, keys) == 50
        assert store(ns, keys_of("more", 5)) == 5
    assert [info.label for info in daemon.stats().namespaces] == [""]


def test_engines_attach_again_by_themselves_and_hold_nothing_back(daemon: Daemon) -> None:
    with daemon.client(managed=True) as client, daemon.client(managed=True, name="other") as other:
        ns = namespace_of(client)
        elsewhere = namespace_of(other)
        for life in range(5):
            store(ns, keys_of(("life", life), 3))
            write = ns.reserve(keys_of(("open", life), 4))
            view = write.views[0]
            daemon.kill()
            until(lambda: not client.connected and not other.connected, "the ends of file")
            daemon.start()
            until(lambda: ns.attached and elsewhere.attached, "the attaches")
            assert daemon.counters()["restart_quarantined"] == 4
            assert daemon.counters()["quarantined_slots"] == 4  # somebody holds its views still
            assert elsewhere.lookup(keys_of(("open", life), 4)).chunks == 0
            view[:8] = b"too late"  # harms nobody
            write.abort()
            until(lambda: daemon.counters()["quarantined_slots"] == 0, "the late word")
            for before in range(life + 1):
                assert load(elsewhere, keys_of(("life", before), 3)) == 3


def test_a_reserve_whose_answer_reached_nobody_is_free_again(daemon: Daemon) -> None:
    with daemon.client(managed=True) as client:
        ns = namespace_of(client)
        attachment, index = client._keeper.bound(ns.id)
        assert attachment.session.reserve(index, keys_of("unheard", 3)).lease  # and nobody is told of it
        daemon.kill()
        until(lambda: not client.connected, "the end of file")
        daemon.start()
        assert daemon.counters()["restart_quarantined"] == 3
        until(lambda: ns.attached, "the attach")
        assert daemon.counters()["quarantined_slots"] == 0
        assert store(ns, keys_of("unheard", 3)) == 3


# ---- writers that live on ----

HOLDER = """
import sys, time
from harness import *
client = Client.connect(sys.argv[1], deadline_ms=PATIENT_MS, name="holder")
ns = client.namespace({"model": "warm"}, 64 << 10)
store(ns, keys_of("done", 2))
write = ns.reserve(keys_of("half", 4))
views = list(write.views)
views[0][:4] = b"half"
print("holds", flush=True)
sys.stdin.readline()
for view in views:
    view[:] = b"x" * len(view)
print("written", flush=True)
time.sleep(600)
"""


def test_slots_of_a_living_writer_are_set_aside_until_it_is_gone(daemon: Daemon) -> None:
    with child(HOLDER, daemon.address) as holder:
        assert line_of(holder, "reserve") == "holds"
        daemon.kill()
        daemon.start()
        assert daemon.counters()["quarantined_slots"] == 4
        with daemon.client() as client:
            ns = namespace_of(client)
            assert ns.lookup(keys_of("half", 4)).chunks == 0
            fresh = keys_of("fresh", 1100)  # as much as there is room for
            with ns.reserve(fresh) as write:
                held = list(write.keys)
                for view in write.views:
                    view[:] = b"y" * CHUNK
                assert holder.stdin is not None
                holder.stdin.write("\n")
                holder.stdin.flush()
                assert line_of(holder, "late writes") == "written"
                assert len(held) == 64 * 16 - 4
                assert all(view == b"y" * CHUNK for view in write.views)
        assert daemon.counters()["quarantined_slots"] == 4
        holder.kill()
        holder.wait(SETTLE_S)
        daemon.assert_nothing_held()


def test_a_writer_that_ended_meanwhile_holds_nothing_back(daemon: Daemon) -> None:
    with child(HOLDER, daemon.address) as holder:
        assert line_of(holder, "reserve") == "holds"
        daemon.signal(signal.SIGSTOP)
        holder.kill()
        holder.wait(SETTLE_S)
        daemon.kill()
        daemon.start()
        assert daemon.counters()["restart_quarantined"] == 4
        daemon.assert_nothing_held()
        with daemon.client() as client:
            assert load(namespace_of(client), keys_of("done", 2)) == 2


# ---- not kept ----


def spoil(path: Path, offset: int, value: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value)


def test_what_does_not_fit_starts_empty_and_says_why(daemon: Daemon) -> None:
    meta, data = daemon.shm_dir / "arena.meta", daemon.shm_dir / "arena.data"
    command = list(daemon.command)

    def again(reason: str, *options: str) -> None:
        daemon.command = command + list(options)
        daemon.start()
        assert re.search(f'"reason": "{reason}"', logged(daemon, "starting empty")), daemon.log()
        assert daemon.counters()["restarts"] == daemon.counters()["committed_slots"] == 0
        with daemon.client() as client:
            assert store(namespace_of(client), keys_of("again", 3)) == 3
        daemon.kill()

    with daemon.client() as client:
        store(namespace_of(client), keys_of("gone", 3))
    daemon.kill()
    again("the arena's size is 67108864, wanted 33554432", "--dram", "32MiB")
    again("the arena's size is 33554432, wanted 67108864")
    again("slots_max is 4096, wanted 8192", "--slots-max", "8192")
    again("slots_max is 8192, wanted 4096")
    again("slab_bytes is 2097152, wanted 4194304", "--slab", "4MiB")
    again("slab_bytes is 4194304, wanted 2097152")
    spoil(meta, 8, struct.pack("<I", 2))
    again("version is 2, wanted 4")
    spoil(meta, 0, b"rubbish!")
    again("magic is [0-9]+, wanted [0-9]+")
    os.truncate(meta, 5000)
    again("the metadata's size is 5000, wanted [0-9]+")
    os.truncate(meta, 0)
    again("the metadata's size is 0, wanted [0-9]+")
    os.truncate(data, 4096)
    again("the arena's size is 4096, wanted 67108864")
    meta.unlink()
    again("arena.meta cannot be opened: No such file or directory")
    meta.unlink()
    meta.symlink_to(data)
    again("arena.meta cannot be opened: .*symbolic links")
    meta.chmod(0o644)
    again("arena.meta has mode 0644 and uid [0-9]+")
    daemon.command = command
    daemon.start()
    with daemon.client() as client:
        assert load(namespace_of(client), keys_of("again", 3)) == 3


NO_ROOM = """
import kvtier.io.machine as machine
machine.memory_available_bytes = lambda: {free}
from kvtier.cli.main import main
main()
"""


def test_a_start_that_has_no_room_leaves_the_arena_as_it_was(daemon: Daemon) -> None:
    keys = keys_of("survives", 5)
    with daemon.client() as client:
        assert store(namespace_of(client), keys) == 5
    assert daemon.stop() == 0
    command = list(daemon.command)
    for free in (0, 63 << 20):  # what the old arena takes would come free, and is counted
        daemon.command[2] = NO_ROOM.format(free=free)
        daemon.command = [*daemon.command, "--dram", "128MiB"]
        with pytest.raises(DaemonUnavailable, match="is larger than the memory that is available now"):
            daemon.start()
        assert daemon.process.returncode == 2
    daemon.command = command
    daemon.start()
    assert daemon.counters()["restart_kept"] == 5
    assert daemon.stop() == 0
    daemon.command = [*command, "--dram", "128MiB"]
    daemon.command[2] = NO_ROOM.format(free=66 << 20)
    daemon.start()
    assert daemon.counters()["restart_kept"] == 0
    assert daemon.counters()["data_bytes"] == 128 << 20


def test_fresh_and_destroy(daemon: Daemon) -> None:
    run = [sys.executable, "-m", "kvtier.cli.main", "admin", "destroy", "--shm-dir", str(daemon.shm_dir)]
    with daemon.client() as client:
        store(namespace_of(client), keys_of("a", 3))
    refused = subprocess.run(run, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 2
    assert "another kvtier daemon" in refused.stderr
    assert daemon.stop() == 0
    daemon.start(fresh=True)
    assert daemon.counters()["committed_slots"] == 0
    assert '"reason": "--fresh was given"' in logged(daemon, "starting empty")
    assert daemon.stop() == 0
    done = subprocess.run(run, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("removed 6")
    assert list(daemon.shm_dir.iterdir()) == []
    daemon.start()


# ---- under load ----

LOADER = """
import random, sys
from harness import *
from kvtier import KVTierError
address, name, seed = sys.argv[1:4]
rng = random.Random(int(seed))
client = Client.connect(address, deadline_ms=PATIENT_MS, managed=True, name=name)
ns = client.namespace({"model": "warm"}, 64 << 10)
mine, n = [], 0
print("ready", flush=True)
import threading
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
while not stop.is_set():
    keys = keys_of((name, n), rng.randint(1, 6))
    try:
        if len(mine) < 90 and rng.random() < 0.5:
            n += 1
            if store(ns, keys) == len(keys):
                mine.append(keys)
        elif mine:
            ns.touch(rng.choice(mine))
            keys = rng.choice(mine)
            with ns.lease(keys) as read:
                copies = [bytes(view) for view in read.views]
                if read.valid():
                    for key, copy in zip(read.keys, copies, strict=True):
                        assert copy == bytes_of(key, ns.chunk_bytes), "wrong bytes"
    except KVTierError:
        stop.wait(0.005)
until(lambda: ns.attached, "attached at the end", 20.0)
for keys in mine:
    assert load(ns, keys) == len(keys), f"lost: {keys[0].hex()}"
print("kept", sum(map(len, mine)), client.attachment, flush=True)
sys.stdin.readline()
client.close()
"""


def test_kills_under_load_lose_nothing_that_was_committed(start_daemon: StartDaemon, seed: int) -> None:
    daemon = start_daemon("128MiB")
    rng = random.Random(seed)
    kills = int(os.environ.get("KVTIER_RESTART_KILLS", "6"))
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(child(LOADER, daemon.address, f"loader {i}", rng.randrange(1 << 32)))
            for i in range(3)
        ]
        for loader in loaders:
            assert line_of(loader, "start") == "ready"
        for _ in range(kills):
            time.sleep(rng.uniform(0.02, 0.6))  # the moment is the test's input, nothing waits for it
            daemon.kill()
            daemon.start()
            until(lambda: len(daemon.stats().sessions) == 3, "all have attached again")
        for loader in loaders:
            assert loader.stdin is not None
            loader.stdin.write("\n")
            loader.stdin.flush()
        for loader in loaders:
            word, kept, attachments = line_of(loader, "the end").split()
            assert word == "kept"
            assert int(kept) > 0
            assert int(attachments) >= 2
        assert daemon.counters()["restarts"] == kills
        assert daemon.counters()["restart_damaged"] == 0
        assert daemon.counters()["evictions"] == 0
        for loader in loaders:
            assert loader.stdin is not None
            loader.stdin.write("\n")
            loader.stdin.flush()
            assert loader.wait(SETTLE_S) == 0
    daemon.assert_nothing_held()


# ---- storage behind it ----


def test_both_tiers_serve_after_a_restart(start_daemon: StartDaemon, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    daemon = start_daemon("16MiB", "--storage", str(root), "--storage-poll", "100ms")
    keys = keys_of("tiers", 300)  # 18.75 MiB
    with daemon.client() as client, daemon.control() as control:
        ns = namespace_of(client)
        for first in range(0, 300, 50):
            assert store(ns, keys[first : first + 50]) == 50
            assert control.flush(SETTLE_S)
    daemon.kill()
    daemon.start()
    kept = daemon.counters()["restart_kept"]
    assert 200 < kept <= 256
    with daemon.client() as client:
        ns = namespace_of(client)
        until(lambda: ns.lookup(keys).chunks == 300, "storage is known again")
        hit = ns.lookup(keys)
        assert hit.host_chunks > 0
        assert hit.storage_chunks > 0
        for first in range(0, 300, 50):
            assert load(ns, keys[first : first + 50]) == 50
        more = keys_of("later", 20)
        assert store(ns, more) == load(ns, more) == 20
    until(lambda: daemon.counters()["storage_demoted_chunks"] >= 20, "what is new is demoted")
