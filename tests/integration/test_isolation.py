"""What a session can do to the chunks of another: nothing, whatever keys, leases or addresses it guesses."""

import signal

import pytest
from harness import Daemon, bytes_of, child, keys_of, load, store

from kvtier import Client, Hit, Namespace

CHUNK = 65536
MINE = {"model": "isolation", "salt": "mine"}
THEIRS = {"model": "isolation", "salt": "theirs"}


def raw(client: Client, ns: Namespace):
    """The session over shared memory below the client, and the namespace's index in it."""
    attachment, index = client._keeper.bound(ns.id)
    return attachment.session, index


def test_one_key_in_two_namespaces_is_two_chunks(daemon: Daemon) -> None:
    """A salt is enough to make the namespaces differ."""
    keys = keys_of("shared", 4)
    with daemon.client() as client, daemon.client() as other:
        mine, theirs = client.namespace(MINE, CHUNK), other.namespace(THEIRS, CHUNK)
        assert mine.id != theirs.id
        assert store(mine, keys) == 4
        assert theirs.lookup(keys) == Hit(0, 0, 0)
        with theirs.lease(keys) as read:
            assert read.keys == []
        assert store(theirs, keys, version=1) == 4  # granted: what the other one has does not count
        assert load(mine, keys) == 4
        assert load(theirs, keys, version=1) == 4
        theirs.clear()
        assert load(mine, keys) == 4


def test_a_write_lease_that_is_guessed_is_not_known(daemon: Daemon) -> None:
    keys = keys_of("guessed", 3)
    with daemon.client() as client, daemon.client() as other:
        mine, theirs = client.namespace(MINE, CHUNK), other.namespace(MINE, CHUNK)
        session, index = raw(client, mine)
        stranger, strangers_index = raw(other, theirs)
        write = session.reserve(index, keys)
        assert write.lease
        with pytest.raises(ValueError, match="is not known"):
            stranger.commit(write.lease)
        stranger.abort(write.lease)
        stranger.release(write.lease)
        stranger.ping()  # both were served
        assert list(stranger.reserve(strangers_index, keys).grants) == [2, 2, 2]  # pending: still reserved
        assert session.lookup(index, keys) == 0
        assert session.commit(write.lease)
        assert session.lookup(index, keys) == 3


def test_a_read_lease_that_is_guessed_stays(daemon: Daemon) -> None:
    keys = keys_of("pinned", 3)
    with daemon.client() as client, daemon.client() as other:
        mine, theirs = client.namespace(MINE, CHUNK), other.namespace(MINE, CHUNK)
        store(mine, keys)
        session, index = raw(client, mine)
        stranger, _ = raw(other, theirs)
        read = session.lease(index, keys)
        stranger.release(read.lease)
        stranger.ping()
        assert sum(item.pinned_slots for item in daemon.stats().sessions) == 3
        session.release(read.lease)
        session.ping()
        assert sum(item.pinned_slots for item in daemon.stats().sessions) == 0


def test_slots_of_a_stranger_are_no_way_to_a_lease(daemon: Daemon) -> None:
    """A key of another length or with one bit flipped, and indexes of namespaces that were not opened."""
    keys = keys_of("near", 2)
    with daemon.client() as client:
        ns = client.namespace(MINE, CHUNK)
        store(ns, keys)
        session, index = raw(client, ns)
        for bit in range(256):
            near = (int.from_bytes(keys[0], "big") ^ (1 << bit)).to_bytes(32, "big")
            assert session.lookup(index, [near]) == 0
        assert session.lookup(index, [keys[0] + b"\0"]) == 0
        assert session.lookup(index, [keys[0][:16]]) == 0
        for wrong in (index + 1, 2**31, 2**32 - 1):
            assert session.lookup(wrong, keys) == 0
            with pytest.raises(ValueError, match="namespace index"):
                session.lease(wrong, keys)


WRITES_METADATA = """
import ctypes, sys
from kvtier import Client

client = Client.connect(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
rows = [line.split() for line in open("/proc/self/maps")]
meta = [row for row in rows if row[-1] == sys.argv[2]]
assert meta and all(row[1] == "r--s" for row in meta), meta
first, last = (int(part, 16) for part in meta[0][0].split("-"))
assert libc.mprotect(first, last - first, 3) == -1
print("errno", ctypes.get_errno(), flush=True)
ctypes.memset(first, 1, 1)
print("written", flush=True)
"""


def test_an_engine_that_writes_to_the_index_dies_of_it(daemon: Daemon) -> None:
    """Its mapping cannot be made writable (EACCES), and a write is a SIGSEGV; others notice nothing."""
    keys = keys_of("index", 2)
    with daemon.client() as client:
        ns = client.namespace(MINE, CHUNK)
        store(ns, keys)
        metas = [path for path in daemon.shm_dir.iterdir() if "meta" in path.name]
        assert len(metas) == 1
        with child(WRITES_METADATA, daemon.address, metas[0]) as process:
            said, _ = process.communicate(timeout=60)
            assert said == "errno 13\n"
            assert process.returncode == -signal.SIGSEGV
        with ns.lease(keys) as read:
            assert [bytes(view) for view in read.views] == [bytes_of(key, CHUNK) for key in keys]
