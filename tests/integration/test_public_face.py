"""The public face, call by call, against a real daemon."""

import gc
import json
from collections.abc import Iterator

import numpy as np
import pytest
from harness import Daemon, bytes_of, key_of, keys_of, load, store

from kvtier import Client, Grant, Hit, LeaseExpired, Namespace, NamespaceMismatch

CHUNK = 64 << 10
PRINT = {"model": "tiny", "revision": "1", "dtype": "float32"}


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.client() as connected:
        yield connected


@pytest.fixture
def ns(client: Client) -> Namespace:
    return client.namespace(PRINT, CHUNK)


def test_what_was_committed_is_found_and_has_the_same_bytes(ns: Namespace) -> None:
    keys = keys_of("a", 10)
    assert ns.lookup(keys) == Hit(0, 0, 0)
    assert store(ns, keys) == 10
    assert ns.lookup(keys) == Hit(10, 10, 0)
    assert load(ns, keys) == 10


def test_lookup_counts_leading_keys_only(ns: Namespace) -> None:
    keys = keys_of("gap", 10)
    store(ns, keys[:4] + keys[5:])
    assert ns.lookup(keys).chunks == 4
    assert ns.lookup(keys[5:]).chunks == 5
    assert load(ns, keys) == 4
    assert not ns.lookup([key_of("absent")])


def test_a_reserve_grants_what_is_absent_and_says_why_not(client: Client, ns: Namespace) -> None:
    keys = keys_of("grants", 4)
    store(ns, keys[:1])
    with ns.reserve(keys[1:2]), ns.reserve(keys) as write:
        assert write.grants == [Grant.PRESENT, Grant.PENDING, Grant.GRANTED, Grant.GRANTED]
        assert write.keys == keys[2:]
        assert len(write.views) == 2


def test_uncommitted_chunks_are_not_readable_and_leaving_aborts(daemon: Daemon, ns: Namespace) -> None:
    keys = keys_of("abort", 3)
    with ns.reserve(keys) as write:
        write.views[0][:] = bytes(CHUNK)
        assert ns.lookup(keys).chunks == 0
        assert daemon.counters()["reserved_slots"] == 3
    assert ns.lookup(keys).chunks == 0
    assert store(ns, keys) == 3  # the keys are free again


def test_an_exception_in_the_block_aborts(ns: Namespace) -> None:
    keys = keys_of("raise", 2)
    with pytest.raises(RuntimeError, match="engine"), ns.reserve(keys):
        raise RuntimeError("the engine fell over")
    assert store(ns, keys) == 2


def test_read_views_are_read_only_and_end_with_the_lease(ns: Namespace) -> None:
    keys = keys_of("views", 2)
    store(ns, keys)
    with ns.lease(keys) as read:
        view = read.views[0]
        assert view.readonly
        with pytest.raises(TypeError):
            view[0] = 1
        assert read.wait(1.0)
        assert [bytes(part[:8]) for part in read.views[:]] == [bytes_of(key, CHUNK)[:8] for key in keys]
    with pytest.raises(ValueError, match="released"):
        bytes(view)
    with pytest.raises(LeaseExpired, match="released"):
        read.views[1]
    assert not read.valid()


def test_write_views_end_with_the_commit(ns: Namespace) -> None:
    write = ns.reserve(keys_of("write-views", 1))
    view = write.views[0]
    view[:] = bytes(CHUNK)
    assert write.commit()
    with pytest.raises(ValueError, match="released"):
        view[0] = 1
    with pytest.raises(LeaseExpired, match="committed"):
        write.views[0]


def test_a_view_keeps_the_mapping_alive(daemon: Daemon) -> None:
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        keys = keys_of("mapped", 1)
        store(ns, keys)
        lease = ns.lease(keys)
        array = np.frombuffer(lease.views[0], np.uint8)
        wanted = bytes_of(keys[0], CHUNK)
    del client, ns, lease
    gc.collect()
    assert array.tobytes() == wanted  # whoever holds an array may get stale bytes, never a crash


def test_keys_may_be_one_array(ns: Namespace) -> None:
    keys = keys_of("array", 20)
    packed = np.frombuffer(b"".join(keys), np.uint8).reshape(20, 32)
    store(ns, keys)
    assert ns.lookup(packed).chunks == 20
    with ns.lease(packed) as read:
        assert read.keys == keys


@pytest.mark.parametrize("length", [16, 17, 40, 41, 64])
def test_every_allowed_key_length_keeps_keys_apart(ns: Namespace, length: int) -> None:
    keys = [bytes([7]) * (length - 1) + bytes([i]) for i in range(8)]
    store(ns, keys)
    assert load(ns, keys) == 8
    assert ns.lookup([keys[0][:-1] + b"\xff"]).chunks == 0


def test_namespaces_do_not_see_each_other(client: Client, ns: Namespace) -> None:
    keys = keys_of("apart", 3)
    store(ns, keys)
    other = client.namespace(PRINT | {"revision": "2"}, CHUNK)
    assert other.id != ns.id
    assert other.lookup(keys).chunks == 0
    store(other, keys, version=1)
    assert load(other, keys, version=1) == load(ns, keys, version=0) == 3


def test_the_same_fingerprint_is_the_same_namespace(daemon: Daemon, client: Client, ns: Namespace) -> None:
    store(ns, keys_of("same", 2))
    with daemon.client() as second:
        twin = second.namespace(dict(reversed(PRINT.items())), CHUNK)
        assert twin.id == ns.id
        assert load(twin, keys_of("same", 2)) == 2
    assert client.namespace(PRINT, CHUNK) is ns


def test_clear_makes_everything_unreadable_for_everybody(daemon: Daemon, ns: Namespace) -> None:
    keys = keys_of("clear", 5)
    store(ns, keys)
    with daemon.client() as second:
        twin = second.namespace(PRINT, CHUNK)
        write = ns.reserve(keys_of("before", 1))
        assert ns.clear() == 5
        assert twin.lookup(keys).chunks == 0
        assert write.commit() is False  # reserved before, committed after
        assert twin.lookup(keys_of("before", 1)).chunks == 0
        assert store(twin, keys, version=2) == 5
    assert load(ns, keys, version=2) == 5


def test_a_clear_under_a_read_lease_leaves_its_bytes(ns: Namespace) -> None:
    keys = keys_of("pinned-clear", 2)
    store(ns, keys)
    with ns.lease(keys) as read:
        ns.clear()
        store(ns, keys_of("others", 100))
        assert read.views[0] == bytes_of(keys[0], CHUNK)


def test_another_chunk_size_is_refused(daemon: Daemon, client: Client, ns: Namespace) -> None:
    with pytest.raises(NamespaceMismatch, match=str(CHUNK)):
        client.namespace(PRINT, 2 * CHUNK)
    with daemon.client() as second, pytest.raises(NamespaceMismatch, match=str(CHUNK)):
        second.namespace(PRINT, 2 * CHUNK)
    assert load(ns, keys_of("a", 1)) == 0  # everything goes on


def test_prefetch_and_touch_keep_chunks(ns: Namespace) -> None:
    keys = keys_of("touched", 2)
    store(ns, keys)
    assert ns.prefetch(keys) == 0
    ns.touch(keys)
    assert load(ns, keys) == 2


def test_stats_tell_what_happened(client: Client, ns: Namespace) -> None:
    keys = keys_of("stats", 7)
    store(ns, keys)
    load(ns, keys)
    stats = client.stats()
    assert stats["counters"]["stores"] == 7
    assert stats["counters"]["hits"] == 7
    assert stats["counters"]["stored_bytes"] == 7 * CHUNK
    mine = [item for item in stats["namespaces"] if item["id"] == ns.id.hex()]
    assert mine[0]["chunks"] == 7
    assert mine[0]["fingerprint"] == PRINT
    assert [item["client"] for item in stats["sessions"]] == ["python"]
    json.dumps(stats)


def test_client_state_and_counters(daemon: Daemon, client: Client, ns: Namespace) -> None:
    assert client.connected
    assert client.attachment == 1
    assert client.boot_id == daemon.stats().boot_id
    ns.lookup(keys_of("counted", 3))
    assert client.counters()["lookup_keys"] == 3
    assert client.counters()["losses"] == 0


def test_close_is_idempotent_and_gives_everything_back(daemon: Daemon) -> None:
    client = daemon.client()
    ns = client.namespace(PRINT, CHUNK)
    store(ns, keys_of("closed", 2))
    ns.lease(keys_of("closed", 2))
    ns.reserve(keys_of("closed-write", 2))
    client.close()
    client.close()
    assert not client.connected
    assert ns.lookup(keys_of("closed", 2)).chunks == 0
    daemon.assert_nothing_held()
