"""Two tiers through the public face: hosts that share a directory, restarts, prefetches, lost records."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from harness import SETTLE_S, Daemon, bytes_of, keys_of, load, store, until

from kvtier import ChunkNotReady, Hit, Namespace

CHUNK = 64 << 10
PRINT = {"model": "shared", "revision": "1"}
StartDaemon = Callable[..., Daemon]


@pytest.fixture
def start_host(start_daemon: StartDaemon, tmp_path: Path) -> StartDaemon:
    """Daemons that share one root, each with an arena of its own."""
    root = tmp_path / "root"
    root.mkdir()

    def start(dram: str = "64MiB", *more: str) -> Daemon:
        return start_daemon(dram, "--storage", str(root), "--storage-poll", "100ms", *more)

    return start


def seen(ns: Namespace, keys: list[bytes], hit: Hit) -> None:
    """Until a lookup says so."""
    until(lambda: ns.lookup(keys) == hit, f"{hit}")


def on_storage(writer: Daemon, chunks: int) -> None:
    """Until that daemon has written so many chunks."""
    until(lambda: writer.counters()["storage_demoted_chunks"] >= chunks, f"{chunks} demoted")


def test_another_host_serves_what_one_has_stored(start_host: StartDaemon) -> None:
    first, second = start_host(), start_host()
    with first.client() as writer, second.client() as reader:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (writer, reader))
        keys = keys_of("shared", 40)
        assert store(mine, keys) == 40
        assert mine.lookup(keys) == Hit(40, 40, 0)
        seen(theirs, keys, Hit(40, 0, 40))
        assert theirs.lookup_count(keys) == 40
        assert load(theirs, keys) == 40
        assert theirs.lookup(keys) == Hit(40, 40, 0)
        assert load(theirs, keys) == 40


def test_both_write_and_read_and_nothing_is_stored_twice(start_host: StartDaemon) -> None:
    first, second = start_host(), start_host()
    with first.client() as one, second.client() as two:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (one, two))
        early, late = keys_of("early", 10), keys_of("late", 10)
        store(mine, early)
        seen(theirs, early, Hit(10, 0, 10))
        assert load(theirs, early) == 10  # now in both arenas
        store(theirs, late)
        seen(mine, late, Hit(10, 0, 10))
        assert load(mine, early + late) == 20
        assert load(theirs, early + late) == 20


def test_a_fresh_arena_is_served_from_storage(start_host: StartDaemon) -> None:
    keys = keys_of("kept", 30)
    before = start_host()
    with before.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        store(ns, keys[:1])
        on_storage(before, 1)  # its directory is there
        store(ns, keys)
    before.finish()  # right after the commit: what is queued is written first
    after = start_host()
    with after.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        seen(ns, keys, Hit(30, 0, 30))
        assert load(ns, keys) == 30
        other = client.namespace(PRINT | {"revision": "2"}, CHUNK)
        assert not other.lookup(keys)


def test_a_prefix_in_both_tiers(start_host: StartDaemon) -> None:
    first, second = start_host(), start_host()
    with first.client() as one, second.client() as two:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (one, two))
        keys = keys_of("mixed", 24)
        store(theirs, keys[:4])
        store(theirs, keys[10:12])
        on_storage(second, 6)
        store(mine, keys)
        seen(theirs, keys, Hit(24, 6, 18))
        with theirs.lease(keys) as read:
            assert len(read) == 24
            assert bytes(read.views[3]) == bytes_of(keys[3], CHUNK)
            assert read.wait(SETTLE_S)
            assert read.failed == []
            assert read.valid()
            assert [bytes(view) for view in read.views] == [bytes_of(key, CHUNK) for key in keys]
        assert theirs.lookup(keys) == Hit(24, 24, 0)


def test_prefetch_brings_chunks_to_dram_without_a_lease(start_host: StartDaemon) -> None:
    first, second = start_host(), start_host()
    with first.client() as one, second.client() as two:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (one, two))
        keys = keys_of("soon", 16)
        store(mine, keys)
        assert mine.prefetch(keys) == 0
        seen(theirs, keys, Hit(16, 0, 16))
        assert theirs.prefetch(keys) == 16
        seen(theirs, keys, Hit(16, 16, 0))
        assert theirs.prefetch(keys) == 0


def test_more_than_the_arena_holds(start_host: StartDaemon) -> None:
    """What was evicted from DRAM comes back from storage, over and over."""
    host = start_host("16MiB")
    with host.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        prompts = [keys_of(("prompt", i), 40) for i in range(12)]  # 30 MiB
        for i, keys in enumerate(prompts):
            assert store(ns, keys) == 40
            on_storage(host, 40 * (i + 1))
        for _ in range(2):
            for keys in prompts:
                assert load(ns, keys) == 40
        assert host.counters()["storage_promoted_chunks"] > 480


def test_the_same_calls_for_tools(start_host: StartDaemon) -> None:
    first, second = start_host(), start_host()
    with first.client() as one, second.client() as two, closing(second.control()) as control:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (one, two))
        keys = keys_of("tools", 8)
        store(mine, keys)
        seen(theirs, keys, Hit(8, 0, 8))
        tool = control.open_session("tool")
        reply = tool.lookup_tiers(theirs.id, keys)
        assert (reply.chunks, reply.host_chunks, reply.storage_chunks) == (8, 0, 8)
        assert tool.prefetch(theirs.id, keys[:3]) == 3
        seen(theirs, keys, Hit(8, 3, 5))
        lease = tool.lease(theirs.id, keys)
        assert len(lease.slots) == 8
        seen(theirs, keys, Hit(8, 8, 0))
        tool.release(lease.lease)
        tool.close()


# ---- what is wrong on storage ----


def damage(root: Path, key: bytes) -> None:
    """Flip one bit of the chunk's bytes, wherever they lie below the root."""
    content = bytes_of(key, CHUNK)
    for path in root.rglob("*.kvs"):
        place = path.read_bytes().find(content)
        if place >= 0:
            with path.open("r+b") as file:
                file.seek(place + 1000)
                byte = file.read(1)[0]
                file.seek(place + 1000)
                file.write(bytes([byte ^ 4]))
                file.flush()
                os.fsync(file.fileno())
            return
    raise AssertionError(f"{key.hex()} is in no segment")


def test_a_corrupt_record_is_lost_and_never_wrong_bytes(start_host: StartDaemon, tmp_path: Path) -> None:
    first, second = start_host(), start_host()
    with first.client() as one, second.client() as two:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (one, two))
        keys = keys_of("corrupt", 12)
        store(mine, keys)
        seen(theirs, keys, Hit(12, 0, 12))
        damage(tmp_path / "root", keys[7])
        with theirs.lease(keys) as read:
            assert len(read) == 12
            assert not read.wait(SETTLE_S)
            assert read.failed == [keys[7]]
            with pytest.raises(ChunkNotReady, match="chunk 7"):
                read.views[7][0]
            for i in (*range(7), *range(8, 12)):
                assert read.views[i] == bytes_of(keys[i], CHUNK)
        assert second.counters()["storage_failed_corrupt"] == 1
        until(lambda: theirs.lookup(keys).chunks == 7, "the bad record is found no more")
        assert load(theirs, keys) == 7
        assert store(theirs, keys) == 1  # recomputed
        assert load(theirs, keys) == 12


def test_a_clear_reaches_storage_and_ends_the_sharing(start_host: StartDaemon) -> None:
    first, second = start_host(), start_host()
    with first.client() as one, second.client() as two:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (one, two))
        keys = keys_of("cleared", 10)
        store(mine, keys)
        seen(theirs, keys, Hit(10, 0, 10))
        assert mine.clear() == 10
        assert load(mine, keys) == 0  # at once, here
        until(lambda: not theirs.lookup(keys), "the other host has seen that the segments are gone")
        until(lambda: second.stats().namespaces[0].storage.startswith("apart: "), "and that it was cleared")
        assert store(mine, keys, version=1) == 10
        assert store(theirs, keys, version=0) == 10  # its engine has the old weights still
        third = start_host()
        with third.client() as three:
            seen(three.namespace(PRINT, CHUNK), keys, Hit(10, 0, 10))
            assert load(three.namespace(PRINT, CHUNK), keys, version=1) == 10
        assert load(mine, keys, version=1) == 10
        assert load(theirs, keys, version=0) == 10
        assert second.counters()["storage_namespaces_apart"] == 1


def test_a_clear_of_what_no_engine_has_opened_since(start_host: StartDaemon) -> None:
    host, third = start_host(), start_host()
    keys = keys_of("cleared", 8)
    with host.client() as client:
        id = client.namespace(PRINT, CHUNK).id
        assert store(client.namespace(PRINT, CHUNK), keys) == 8
        on_storage(host, 8)
    host.kill()
    host.start()
    with host.control() as control:
        assert control.clear_namespace(id) == 8
    with host.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        assert load(ns, keys) == 0
        assert store(ns, keys, version=1) == 8
        on_storage(host, 8)
        with third.control() as control:
            assert control.clear_namespace(id) == 0  # to that one it lies on storage alone
        until(lambda: host.stats().namespaces[0].storage.startswith("apart: "), "seen by the other")
        assert load(ns, keys, version=1) == 8
    with third.client() as client:
        assert load(client.namespace(PRINT, CHUNK), keys) == 0


def test_an_engine_that_outlives_its_daemon_reads_what_is_of_its_weights(start_host: StartDaemon) -> None:
    first, second = start_host(), start_host()
    old, new = keys_of("old", 8), keys_of("new", 8)
    with first.client() as one, second.client(managed=True) as two:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (one, two))
        store(theirs, old, version=0)
        on_storage(second, 8)
        mine.clear()
        store(mine, new, version=1)
        until(lambda: second.stats().namespaces[0].storage.startswith("apart: "), "the clear was seen")
        second.kill()
        second.start()
        until(lambda: theirs.attached, "attached anew")
        until(lambda: second.stats().namespaces[0].storage.startswith("apart: "), "of the old epoch")
        with start_host().client() as fresh:  # whereas one that starts now is of the new one
            seen(fresh.namespace(PRINT, CHUNK), new, Hit(8, 0, 8))
        until(lambda: load(theirs, old, version=0) == 8, "what it stored before")
        assert not theirs.lookup(new)
        assert store(theirs, new, version=0) == 8
        assert load(mine, new, version=1) == 8


def test_an_engine_that_starts_anew_is_served_nothing_of_older_weights(start_host: StartDaemon) -> None:
    first, second = start_host(), start_host()
    keys, more = keys_of("both", 8), keys_of("more", 4)
    with first.client() as one, second.client() as two:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (one, two))
        store(theirs, keys, version=0)
        on_storage(second, 8)
        mine.clear()  # the fleet's weights are updated in place, on this host first
        store(mine, keys[:6], version=1)
        on_storage(first, 6)
    second.kill()  # and on the other its engine and its daemon are started anew
    second.start()
    assert second.counters()["restart_kept"] == 8
    with second.client() as two, start_host().client() as three:
        theirs = two.namespace(PRINT, CHUNK)
        seen(theirs, keys, Hit(6, 0, 6))
        assert load(theirs, keys, version=1) == 6
        assert store(theirs, more, version=1) == 4
        assert second.stats().namespaces[0].storage == "ready"  # of the fleet's epoch, not of one of its own
        seen(three.namespace(PRINT, CHUNK), more, Hit(4, 0, 4))
        assert load(three.namespace(PRINT, CHUNK), more, version=1) == 4


def test_an_engine_that_starts_anew_is_served_what_no_clear_has_made_old(start_host: StartDaemon) -> None:
    host = start_host()
    keys = keys_of("kept", 8)
    for life in range(3):
        with host.client() as client:
            ns = client.namespace(PRINT, CHUNK)
            assert ns.lookup(keys) == (Hit(8, 8, 0) if life else Hit(0, 0, 0))  # no call later, but at once
            assert store(ns, keys) == (0 if life else 8)
            on_storage(host, 0 if life else 8)
        host.kill()
        host.start()


def test_a_daemon_without_storage_finds_nothing_there(daemon: Daemon) -> None:
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        keys = keys_of("dram", 6)
        store(ns, keys[:4])
        assert ns.lookup(keys) == Hit(4, 4, 0)
        assert ns.prefetch(keys) == 0
        assert load(ns, keys) == 4
        assert client.counters()["lookup_storage_hits"] == 0
        assert "storage_serving" not in daemon.counters()
