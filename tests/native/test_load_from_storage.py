"""Loads of chunks that lie on storage: one lease, one copy job, bytes as they arrive."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from native_host import keys
from tiered_host import TieredHost, chunk_payload, fill

import tpu_sync_native as native

pytestmark = pytest.mark.timeout(120)

CHUNK = 256 * 1024
COUNT = 24


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[TieredHost]:
    host = TieredHost(tmp_path)
    try:
        yield host
    finally:
        host.close()


def store_and_drop(tiers: TieredHost, session: native.Session, ns: int, count: int = COUNT) -> None:
    """Chunks 0..count that are on storage, and not in DRAM any more."""
    write = session.reserve(ns, keys(0, count))
    assert list(write.grants) == [0] * count
    fill(session, write.refs, [chunk_payload(ns, i, CHUNK) for i in range(count)])
    assert session.commit(write.lease)
    tiers.flush()
    assert tiers.store.evict(ns, 1 << 40) == count * CHUNK
    assert tiers.store.stats()["committed_slots"] == 0


def load(engine: native.CopyEngine, layout: int, refs: native.SlotRefs) -> tuple[int, bool, int, float, int]:
    blocks = np.arange(len(refs))
    engine.submit(1, "load", [layout], [len(refs)], blocks, blocks, refs)
    assert engine.wait([1], 60)
    return engine.poll()[0]


def test_a_load_takes_a_lease_whose_chunks_are_still_coming(tiers: TieredHost) -> None:
    ns = tiers.open_namespace(1, CHUNK)
    number, session = tiers.attach()
    store_and_drop(tiers, session, ns)
    assert session.lookup_tiers(ns, keys(0, COUNT + 1)) == (COUNT, 0)
    assert session.present(ns, keys(COUNT - 1, 3)).tolist() == [True, False, False]

    device = np.zeros(COUNT * CHUNK, np.uint8)
    engine = native.CopyEngine(session, threads=1)
    layout = engine.add_layout([(device.ctypes.data, CHUNK, CHUNK)], COUNT, 1)
    read = session.lease(ns, keys(0, COUNT + 1))
    assert read.count == COUNT
    job, ok, moved, _, valid = load(engine, layout, read.refs)
    assert (job, ok, moved, valid) == (1, True, COUNT * CHUNK, COUNT)
    assert device.tobytes() == b"".join(chunk_payload(ns, i, CHUNK) for i in range(COUNT))
    session.release(read.lease)

    stats = tiers.store.stats()
    assert (stats["storage_hits"], stats["promotes"], stats["promote_losses"]) == (COUNT, COUNT, 0)
    assert session.lookup_tiers(ns, keys(0, COUNT)) == (COUNT, COUNT)  # a second load finds them in DRAM
    engine.close()
    tiers.store.close_session(number, True)
    assert tiers.store.audit() == []


def test_a_chunk_gone_from_storage_is_a_failed_load(tiers: TieredHost, tmp_path: Path) -> None:
    ns = tiers.open_namespace(1, CHUNK)
    _, session = tiers.attach()
    store_and_drop(tiers, session, ns)
    damaged = list(tmp_path.rglob("seg-*.kvs"))
    assert damaged
    for path in damaged:
        path.write_bytes(bytes(path.stat().st_size))

    device = np.zeros(COUNT * CHUNK, np.uint8)
    engine = native.CopyEngine(session, threads=1)
    layout = engine.add_layout([(device.ctypes.data, CHUNK, CHUNK)], COUNT, 1)
    read = session.lease(ns, keys(0, COUNT))
    assert read.count == COUNT
    _, ok, moved, _, valid = load(engine, layout, read.refs)
    assert (ok, moved, valid) == (False, 0, 0)
    assert not device.any()  # nothing that was not verified reaches the device
    session.release(read.lease)
    session.ping()
    assert tiers.store.stats()["promote_losses"] == COUNT
    assert tiers.store.stats()["quarantined_slots"] == 0
    engine.close()
    assert tiers.store.audit() == []


def test_a_prefetched_prefix_is_in_dram(tiers: TieredHost) -> None:
    ns = tiers.open_namespace(1, CHUNK)
    _, session = tiers.attach()
    store_and_drop(tiers, session, ns)
    assert tiers.store.prefetch(ns, keys(0, COUNT)) == COUNT
    read = session.lease(ns, keys(0, COUNT))  # joins
    assert session.wait_ready(read.refs.slots, read.refs.generations, 60) == COUNT
    assert tiers.store.stats()["promotes"] == COUNT
    for i, offset in enumerate(read.refs.offsets):
        assert bytes(session.view(int(offset), CHUNK, False)) == chunk_payload(ns, i, CHUNK)
    session.release(read.lease)
