"""A session over a real ring: answers and arguments."""

import os

import numpy as np
import pytest
from native_host import BOOT_ID, MIB, PAGE, Files, Host, key, keys, memfd, stored

import tpu_sync_native as native

pytestmark = pytest.mark.timeout(60)


def test_store_and_load(host: Host) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    names = keys(0, 5)
    write = session.reserve(ns, names)
    for i, offset in enumerate(write.refs.offsets):
        session.view(int(offset), PAGE, True)[:] = bytes([i + 1]) * PAGE
    assert session.lookup(ns, names) == 0
    assert session.commit(write.lease)
    assert session.lookup(ns, names) == host.store.lookup(ns, names) == 5

    _, reader = host.attach()
    read = reader.lease(ns, [*names, key(99)])
    assert read.count == 5
    assert len(read.refs) == 5
    for i, offset in enumerate(read.refs.offsets):
        view = reader.view(int(offset), PAGE, False)
        assert view.readonly
        assert bytes(view) == bytes([i + 1]) * PAGE
    assert reader.unchanged(read.refs.slots, read.refs.generations).tolist() == [True] * 5
    assert reader.unchanged(read.refs.slots, read.refs.generations + 1).tolist() == [False] * 5
    reader.release(read.lease)
    reader.ping()


def test_keep_mask_and_grants(host: Host) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    names = keys(0, 10)
    write = session.reserve(ns, names)
    assert session.commit(write.lease, np.array([1] * 9 + [0], dtype=np.uint8))
    again = session.reserve(ns, [*names, names[9]])
    assert list(again.grants) == [1] * 9 + [0, 2]
    assert session.commit(again.lease, np.array([True]))
    assert session.lookup(ns, names) == 10


@pytest.mark.parametrize("length", [16, 40, 41, 64])
def test_key_lengths(host: Host, length: int) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    names = keys(0, 3, length)
    stored(session, ns, names)
    packed = np.frombuffer(b"".join(names), dtype=np.uint8).reshape(3, length)
    assert session.lookup(ns, packed) == session.lookup(ns, tuple(names)) == 3
    # The whole key counts: another last byte is another key.
    assert session.lookup(ns, [names[0][:-1] + b"\x01"]) == 0
    read = session.lease(ns, packed)
    assert read.count == 3
    session.release(read.lease)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ([bytes(15)], r"keys\[0\] has 15 bytes, allowed are 16 to 64"),
        ([bytes(16), bytes(65)], r"keys\[1\] has 65 bytes"),
        ([bytes(16), "text"], r"keys\[1\] is str, bytes are needed"),
        (bytes(32), r"keys\[0\] is int"),
        (7, r"a list of bytes .* not int"),
        (np.zeros((2, 15), np.uint8), r"keys of 15 bytes, allowed are 16 to 64"),
        (np.zeros((2, 32), np.uint16), r"C-contiguous uint8"),
        (np.zeros(32, np.uint8), r"shape \(count, key_bytes\)"),
        (np.zeros((4, 64), np.uint8)[:, ::2], r"C-contiguous"),
        (np.zeros((65537, 16), np.uint8), r"65537 keys in one call"),
    ],
)
def test_wrong_keys(host: Host, bad: object, says: str) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    number, session = host.attach()
    for call in (session.lookup, session.lease, session.reserve, session.touch):
        with pytest.raises(ValueError, match=says):
            call(ns, bad)
    with pytest.raises(ValueError, match=says):
        host.store.reserve(number, ns, bad)
    session.ping()


def test_wrong_arguments(host: Host) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    with pytest.raises(ValueError, match="lease 77 is not known"):
        session.commit(77)
    with pytest.raises(ValueError, match="namespace index 9"):
        session.lease(9, keys(0, 1))
    assert session.lookup(9, keys(0, 1)) == 0
    write = session.reserve(ns, keys(0, 2))
    session.abort(write.lease)
    with pytest.raises(ValueError, match="is not known"):
        session.commit(write.lease)
    with pytest.raises(ValueError, match="keep"):
        session.commit(write.lease, np.zeros((2, 2), np.uint8))
    with pytest.raises(ValueError, match="outside the arena"):
        session.view(session.data_bytes - 1, 2, False)
    with pytest.raises(ValueError, match="outside the arena"):
        session.view(2**64 - 1, 2, False)
    with pytest.raises(ValueError, match="2 slots, 1 generations"):
        session.unchanged(np.zeros(2, np.uint32), np.zeros(1, np.uint32))
    assert session.unchanged(np.array([2**32 - 1], np.uint32), np.zeros(1, np.uint32)).tolist() == [False]
    assert session.lease(ns, []).count == 0
    assert len(session.reserve(ns, []).grants) == 0
    session.ping()


def test_posted_failures_are_counted_and_harmless(host: Host) -> None:
    _, session = host.attach()
    session.release(12345)
    session.abort(12345)
    assert session.commit(12345, wait=False) is True
    session.ping()
    assert host.store.stats()["ring_posted_failures"] == 3


def test_clear_between_reserve_and_commit(host: Host) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    write = session.reserve(ns, keys(0, 2))
    host.store.clear_namespace(ns)
    assert session.commit(write.lease) is False
    assert session.lookup(ns, keys(0, 2)) == 0


def test_draining(host: Host) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    stored(session, ns, keys(0, 2))
    host.store.set_draining(True)
    read, write = session.lease(ns, keys(0, 2)), session.reserve(ns, keys(5, 2))
    assert (read.lease, read.count) == (0, 0)
    assert (write.lease, list(write.grants)) == (0, [4, 4])


def test_identity_and_counters(host: Host) -> None:
    ns = host.store.open_namespace(bytes(16), PAGE)
    _, session = host.attach()
    assert session.boot_id == BOOT_ID
    assert len(session.arena_id) == 16
    assert session.data_bytes == 16 * MIB
    session.lookup(ns, keys(0, 3))
    session.ping()
    counters = session.counters()
    assert (counters["calls"], counters["lookups"], counters["lookup_keys"]) == (1, 1, 3)
    assert counters["timeouts"] == counters["lost"] == 0
    assert host.store.stats()["ring_sessions"] == 1


def test_files_that_do_not_fit() -> None:
    files = Files()
    with pytest.raises(ValueError, match="meta_fd"):
        files.session(files.ring())
    host = Host()
    ring_fd = host.files.ring()
    with pytest.raises(ValueError, match="ring_fd"):
        host.files.session(ring_fd)
    os.ftruncate(ring_fd, native.ring_bytes())
    with pytest.raises(ValueError, match="ring_fd: magic"):
        host.files.session(ring_fd)
    plain = os.memfd_create("plain")
    with pytest.raises(ValueError, match="sealed"):
        host.store.open_session(1, 1, 0, plain)
    assert host.store.sessions() == []
    with pytest.raises(OSError):
        host.store.open_session(1, 1, 0, 9999)
    os.close(plain)
    host.close()
    files.close()


def test_metadata_is_read_only_for_a_client() -> None:
    host = Host()
    read_only = os.open(f"/proc/self/fd/{host.files.meta_fd}", os.O_RDONLY)
    ring_fd = host.files.ring()
    host.store.open_session(1, 1, os.getpid(), ring_fd)
    session = native.Session(
        data_fd=host.files.data_fd, meta_fd=read_only, ring_fd=ring_fd, doorbell_fd=host.files.doorbell_fd
    )
    session.ping()
    os.close(read_only)
    host.close()


def test_without_storage_there_is_one_tier(host: Host) -> None:
    _, session = host.attach()
    ns = host.store.open_namespace(bytes(16), PAGE)
    stored(session, ns, keys(0, 5))
    assert session.lookup_tiers(ns, keys(0, 9)) == host.store.lookup_tiers(ns, keys(0, 9)) == (5, 5)
    session.prefetch(ns, keys(0, 9))
    session.ping()
    assert host.store.prefetch(ns, keys(0, 9)) == 0
    read = session.lease(ns, keys(0, 9))
    assert session.wait_ready(read.refs.slots, read.refs.generations, 0) == 5
    assert session.wait_ready(read.refs.slots, read.refs.generations + 1, 1) == 0  # lost: no reason to wait
    assert session.wait_ready(read.refs.slots[:0], read.refs.generations[:0], 1) == 0
    with pytest.raises(ValueError, match="5 slots, 4 generations"):
        session.wait_ready(read.refs.slots, read.refs.generations[:4], 0)
    session.release(read.lease)


@pytest.mark.parametrize("count", [7, 600])  # with the GIL, and without
def test_presence_of_each_key_by_itself(host: Host, count: int) -> None:
    _, session = host.attach()
    ns = host.store.open_namespace(bytes(16), PAGE)
    names = keys(0, count)
    wanted = [i % 3 != 1 and i != 0 for i in range(count)]
    stored(session, ns, [name for name, there in zip(names, wanted, strict=True) if there])
    assert session.present(ns, names).tolist() == wanted
    packed = np.frombuffer(b"".join(names), dtype=np.uint8).reshape(count, -1)
    assert session.present(ns, packed).tolist() == wanted
    assert session.present(ns, []).tolist() == []
    session.mark_lost()
    assert session.present(ns, names).tolist() == [False] * count


def test_an_empty_catalog_is_read_only_and_of_one_size() -> None:
    catalog_fd = memfd("catalog")
    native.catalog_make_empty(catalog_fd, 7)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(catalog_fd, size)
    with pytest.raises(PermissionError):
        os.pwrite(catalog_fd, b"x", 0)
    os.close(catalog_fd)


def test_a_catalog_that_is_none_is_refused(host: Host) -> None:
    ring_fd, catalog_fd = host.files.ring(), memfd("catalog")
    os.ftruncate(catalog_fd, 4096)
    host.store.open_session(1, 1, os.getpid(), ring_fd)
    with pytest.raises(ValueError, match="catalog: magic"):
        native.Session(
            data_fd=host.files.data_fd,
            meta_fd=host.files.meta_fd,
            ring_fd=ring_fd,
            doorbell_fd=host.files.doorbell_fd,
            catalog_fd=catalog_fd,
        )
    os.close(catalog_fd)
