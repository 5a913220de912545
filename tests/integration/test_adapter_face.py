"""The calls for adapters: arrays in and out, posted answers, the copy engine."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from harness import Daemon, bytes_of, keys_of, load, store, until

from kvtier import Grant, InvalidArgument, LeaseExpired, Namespace, SlotGrants, SlotLease

CHUNK = 64 << 10
PRINT = {"model": "tiny", "layout": "adapter"}


def write_all(ns: Namespace, grants: SlotGrants, keys: list[bytes]) -> None:
    for i, key in enumerate(keys):
        ns.slot_view(grants, i, writable=True)[:] = bytes_of(key, CHUNK)


def test_reserve_write_commit_lease_release(daemon: Daemon) -> None:
    keys = keys_of("flow", 6)
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        grants = ns.reserve_slots(keys)
        assert grants.grants.tolist() == [Grant.GRANTED] * 6
        assert len(grants) == len(set(grants.slots.tolist())) == 6
        assert grants.boot_id == client.boot_id
        write_all(ns, grants, keys)
        assert ns.commit_slots(grants)  # posted
        until(lambda: ns.lookup_count(keys) == 6, "the posted commit")
        lease = ns.lease_slots(keys)
        assert ns.unchanged(lease).all()
        assert lease.offsets.tolist() == grants.offsets.tolist()
        assert daemon.counters()["pinned_slots"] == 6
        ns.release_slots(lease)
        until(lambda: daemon.counters()["pinned_slots"] == 0, "the posted release")


def test_keep_commits_some_and_aborts_the_rest(daemon: Daemon) -> None:
    keys = keys_of("keep", 4)
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        grants = ns.reserve_slots(keys)
        write_all(ns, grants, keys)
        assert ns.commit_slots(grants, np.array([1, 1, 0, 1], np.uint8), wait=True)
        assert ns.lookup_count(keys) == 2
        assert ns.lookup_count(keys[3:]) == 1
        again = ns.reserve_slots(keys)
        assert again.grants.tolist() == [Grant.PRESENT, Grant.PRESENT, Grant.GRANTED, Grant.PRESENT]
        ns.abort_slots(again)
        with pytest.raises(InvalidArgument, match="keep: 2 entries for a lease of 1 slots"):
            ns.commit_slots(again, np.ones(2, np.uint8))


@pytest.mark.parametrize("policy", ["lru", "s3fifo"])
def test_a_prefix_stored_in_parts_loses_its_end_first(
    start_daemon: Callable[..., Daemon], policy: str
) -> None:
    daemon = start_daemon("8MiB", "--policy", policy)
    slots = (8 << 20) // CHUNK
    keys, others = keys_of("parts", slots // 2), keys_of("others", slots * 3 // 4)
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        until(lambda: daemon.counters()["populated_bytes"] == 8 << 20, "the whole arena")
        assert store(ns, keys[: slots // 4]) == store(ns, keys[slots // 4 :]) == slots // 4
        ns.renew(keys[: slots // 4])
        assert store(ns, others) == len(others)
        # The daemon may have made room for the next reserve by now, at most a sixteenth, from the same end.
        assert slots // 4 - slots // 16 <= ns.lookup_count(keys) <= slots // 4


def test_empty_leases_need_no_daemon(daemon: Daemon) -> None:
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        lease = ns.lease_slots(keys_of("none", 3))
        assert (lease.lease, len(lease)) == (0, 0)
        ns.release_slots(lease)
        ns.abort_slots(SlotLease())
        assert ns.commit_slots(SlotGrants(), wait=True)


def test_values_travel_to_another_process(daemon: Daemon) -> None:
    keys = keys_of("pickled", 3)
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        store(ns, keys)
        lease = ns.lease_slots(keys)
        twin = pickle.loads(pickle.dumps(lease))
        assert [part.tolist() for part in twin.refs] == [part.tolist() for part in lease.refs]
        assert twin.boot_id == lease.boot_id
        ns.release_slots(lease)


def test_a_commit_after_an_abort_is_refused(daemon: Daemon) -> None:
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        grants = ns.reserve_slots(keys_of("aborted", 2))
        ns.abort_slots(grants)
        with pytest.raises(LeaseExpired, match=f"lease {grants.lease}"):
            ns.commit_slots(grants, wait=True)
        assert store(ns, keys_of("aborted", 2)) == 2


def test_the_copy_engine_moves_chunks_in_and_out(daemon: Daemon) -> None:
    blocks, page_bytes, per_chunk = 16, 16 << 10, 4
    rng = np.random.default_rng(5)
    source = rng.integers(0, 256, (blocks, page_bytes), np.uint8)
    target = np.zeros_like(source)
    keys = keys_of("engine", blocks // per_chunk)
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        engine = client.copy_engine(threads=2)
        layouts = [
            engine.add_layout([(array.ctypes.data, page_bytes, page_bytes)], blocks, per_chunk)
            for array in (source, target)
        ]
        ids = np.arange(blocks, dtype=np.int64)
        grants = ns.reserve_slots(keys)
        engine.submit(1, "store", [layouts[0]], [blocks], ids, ids, grants.refs)
        assert engine.wait([1], 10.0)
        assert ns.commit_slots(grants, wait=True)
        lease = ns.lease_slots(keys)
        engine.submit(2, "load", [layouts[1]], [blocks], ids, ids, lease.refs)
        assert engine.wait([2], 10.0)
        done = {job: (ok, moved) for job, ok, moved, _, _ in engine.poll()}
        assert done == {1: (True, source.nbytes), 2: (True, source.nbytes)}
        ns.release_slots(lease)
        stale = SlotLease(
            lease.lease, lease.boot_id, lease.attachment, lease.slots, lease.generations + 1, lease.offsets
        )
        engine.submit(3, "load", [layouts[1]], [blocks], ids, ids, stale.refs)
        assert engine.wait([3], 10.0)
        assert [ok for job, ok, *_ in engine.poll() if job == 3] == [False]
        engine.close()
    assert (target == source).all()


def test_a_group_of_sessions_shares_leases(daemon: Daemon) -> None:
    """The scheduler leases, a worker of its group reads under it."""
    keys = keys_of("group", 3)
    with daemon.client(group="engine-1", name="scheduler") as scheduler:
        store(scheduler.namespace(PRINT, CHUNK), keys)
        lease = scheduler.namespace(PRINT, CHUNK).lease_slots(keys)
        with daemon.client(group="engine-1", name="worker") as worker:
            assert worker.boot_id == lease.boot_id
            view = worker.namespace(PRINT, CHUNK)
            own = SlotLease(lease.lease, lease.boot_id, worker.attachment, *lease.refs)
            assert view.slot_view(own, 2) == bytes_of(keys[2], CHUNK)
            assert view.unchanged(own).all()
        assert {item.group for item in daemon.stats().sessions} == {"engine-1"}
        assert load(scheduler.namespace(PRINT, CHUNK), keys) == 3


def test_on_attach_is_called_once_an_attachment(daemon: Daemon) -> None:
    seen: list[int] = []
    with daemon.client(managed=True) as client:
        client.on_attach(seen.append)
        assert seen == [daemon.stats().boot_id]
        client.on_attach(lambda boot_id: 1 // 0)  # a faulty callback harms nobody
        assert client.namespace(PRINT, CHUNK).attached
