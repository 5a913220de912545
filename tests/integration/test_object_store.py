"""The storage tier on an object store: a real S3-compatible server, hosts that share a bucket."""

from collections.abc import Callable, Iterator

import pytest
from harness import Daemon, keys_of, load, store, until
from s3_server import BUCKET, s3_server

from kvtier import DaemonUnavailable, Hit

CHUNK = 64 << 10
PRINT = {"model": "shared", "revision": "1"}
StartDaemon = Callable[..., Daemon]
PATIENCE_S = 30.0


@pytest.fixture
def bucket() -> Iterator[str]:
    with s3_server():
        yield f"s3://{BUCKET}"


def host(start_daemon: StartDaemon, root: str, *more: str) -> Daemon:
    options = ("--storage", root, "--storage-poll", "200ms", "--storage-segment", "1MiB", *more)
    return start_daemon("64MiB", *options)


def test_hosts_share_a_bucket(start_daemon: StartDaemon, bucket: str) -> None:
    root = f"{bucket}/hosts-share"
    keys = keys_of("objects", 40)  # more than two segments, sealed as they fill
    first, second = host(start_daemon, root), host(start_daemon, root)
    with first.client() as one, second.client() as two:
        mine, theirs = (client.namespace(PRINT, CHUNK) for client in (one, two))
        assert store(mine, keys) == 40
        until(lambda: theirs.lookup(keys).storage_chunks >= 15, "a sealed segment is seen", PATIENCE_S)
        assert load(theirs, keys) >= 15
    first.finish()  # seals what is open
    with second.client() as two:
        theirs = two.namespace(PRINT, CHUNK)
        until(lambda: theirs.lookup(keys).chunks == 40, "all of them", PATIENCE_S)
        assert load(theirs, keys) == 40


def test_a_fresh_arena_is_served_from_the_bucket(start_daemon: StartDaemon, bucket: str) -> None:
    root = f"{bucket}/fresh"
    keys = keys_of("kept", 20)
    before = host(start_daemon, root)
    with before.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        store(ns, keys)
    before.finish()  # seals what is open
    after = host(start_daemon, root)
    with after.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        until(lambda: ns.lookup(keys) == Hit(20, 0, 20), "seen", PATIENCE_S)
        assert load(ns, keys) == 20
        ns.clear()
        assert not ns.lookup(keys)


def test_a_store_that_goes_away_is_a_miss(start_daemon: StartDaemon) -> None:
    keys = keys_of("lost", 40)
    with s3_server():
        daemon = host(start_daemon, f"s3://{BUCKET}/lost")
        client = daemon.client()
        ns = client.namespace(PRINT, CHUNK)
        store(ns, keys)
        until(lambda: daemon.counters()["storage_demoted_chunks"] >= 15, "demoted", PATIENCE_S)
    # The server is gone. What is in DRAM is served and written as before.
    more = keys_of("more", 20)
    assert store(ns, more) == 20
    assert load(ns, keys) == 40
    assert load(ns, more) == 20
    client.close()
    assert daemon.stop() == 0


def test_roots_that_cannot_be_used(start_daemon: StartDaemon, bucket: str) -> None:
    for root, part in (
        ("s3://no-such-bucket/x", "no-such-bucket"),
        ("nosuch://x", "nosuch"),
        ("file:///tmp", "path alone"),
        ("s3://key:hidden@bucket/x", "credentials"),
    ):
        with pytest.raises(DaemonUnavailable) as raised:
            host(start_daemon, root)
        assert "ended (2)" in str(raised.value), str(raised.value)
        assert part in str(raised.value), str(raised.value)
