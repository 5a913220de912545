"""The worker's side: what reaches the copy engine, and that every job is reported once."""

import numpy as np
import pytest
from fakes import FakeClient
from kvtier_connectors.common import guard
from kvtier_connectors.vllm_connector.absent_worker import AbsentWorker
from kvtier_connectors.vllm_connector.devices import HostTensors
from kvtier_connectors.vllm_connector.layout import GroupPlan
from kvtier_connectors.vllm_connector.transfer import SlotSpec, WorkerReport
from kvtier_connectors.vllm_connector.worker import KVTierWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.kv_offload.base import GPULoadStoreSpec

PLANS = (GroupPlan(0, 16, 2, 2, 64, 2, False), GroupPlan(1, 16, 2, 2, 32, 2, True))
REGIONS = [[(1000, 32, 32), (5000, 32, 32)], [(1000, 32, 32)]]
CHUNK_BYTES = tuple(plan.chunk_bytes for plan in PLANS)


def spec(counts=(2, 1), boot_id=7, **changes):
    total = sum(counts)
    slots = np.arange(total, dtype=np.uint32)
    fields = {
        "ticket": 1,
        "boot_id": boot_id,
        "counts": counts,
        "chunk_bytes": CHUNK_BYTES,
        "slots": slots,
        "generations": slots,
        "offsets": slots.astype(np.uint64),
    }
    return SlotSpec(**{**fields, **changes})


def device(sizes=(4, 2), indices=(0, 0)):
    return GPULoadStoreSpec(list(range(10, 10 + sum(sizes))), list(sizes), list(indices))


def worker_of(client, part=0, groups=2, tensors=None):
    return KVTierWorker(
        client,
        PLANS[:groups],
        REGIONS[:groups],
        tensors or HostTensors([]),
        num_blocks=100,
        part=part,
        copy_threads=0,
        load_deadline_ms=900,
        load_window_ms=3,
    )


@pytest.fixture
def client():
    return FakeClient()


@pytest.fixture
def worker(client):
    guard.faults.clear()
    one = worker_of(client, part=1)
    client.attach(7)
    return one


def outcome(worker):
    """{job: succeeded} of what ended."""
    finished = worker.get_finished()
    assert all(result.success for result in finished)  # the framework asserts it
    failed = worker.take_failed()
    return {result.job_id: result.job_id not in failed for result in finished}


def test_layouts_put_this_rank_into_its_part(client, worker):
    assert client.engines[0].layouts == [(REGIONS[0], 100, 2, 128), (REGIONS[1], 100, 2, 64)]


def test_a_store_reaches_the_engine(client, worker):
    assert worker.submit_store(3, device(), spec())
    direction, layouts, sizes, blocks, positions, refs = client.engines[0].submitted[3]
    assert (direction, layouts, sizes) == ("store", [0, 1], [4, 2])
    assert blocks == [10, 11, 12, 13, 14, 15]
    assert positions == [0, 1, 2, 3, 4, 5]
    assert len(refs[0]) == 3
    assert outcome(worker) == {}
    client.engines[0].end(3)
    assert outcome(worker) == {3: True}
    assert outcome(worker) == {}


def test_a_load_may_begin_within_a_chunk(client, worker):
    worker.submit_load(4, spec(), device((3, 1), (5, 9)))
    assert client.engines[0].submitted[4][4] == [1, 2, 3, 5]


@pytest.mark.parametrize(
    "bad",
    [
        spec(void=True),
        spec(boot_id=8),
        spec(chunk_bytes=(1, 2)),
        spec(counts=(1, 1)),
        object(),
    ],
    ids=["void", "other daemon life", "other plan", "blocks without chunks", "foreign"],
)
def test_what_cannot_be_copied_is_a_failed_job_reported_once(client, worker, bad):
    assert worker.submit_load(5, bad, device())
    assert worker.submit_store(6, device(), bad)
    assert client.engines[0].submitted == {}
    assert outcome(worker) == {5: False, 6: False}
    assert outcome(worker) == {}


def test_no_daemon_yet(client):
    worker = worker_of(client)
    worker.submit_load(1, spec(), device())
    assert outcome(worker) == {1: False}
    client.attach(7)
    worker.submit_load(2, spec(), device())
    assert 2 in client.engines[0].submitted


def test_the_native_engines_failure_is_the_jobs(client, worker):
    worker.submit_load(1, spec(), device())
    client.engines[0].end(1, ok=False)
    assert outcome(worker) == {1: False}


def test_a_fault_in_the_native_engine_is_a_failed_job(client, worker):
    def broken(*_):
        raise ValueError("bad region")

    client.engines[0].submit = broken
    worker.submit_load(1, spec(), device())
    assert outcome(worker) == {1: False}
    assert guard.fault_count() == 1


def test_after_a_reattachment_the_old_engine_finishes_what_it_has(client, worker):
    worker.submit_load(1, spec(), device())
    client.attach(9)
    worker.submit_load(2, spec(boot_id=9), device())
    worker.submit_load(3, spec(boot_id=7), device())
    old, new = client.engines
    assert list(new.submitted) == [2]
    assert outcome(worker) == {3: False}
    assert not old.closed
    old.end(1)
    new.end(2)
    assert outcome(worker) == {1: True, 2: True}
    assert old.closed
    assert not new.closed


@pytest.fixture
def single(client):
    """A worker of a model with one KV group."""
    guard.faults.clear()
    one = worker_of(client, groups=1)
    client.attach(7)
    return one


def one_group(granted=4):
    slots = np.arange(granted, dtype=np.uint32)
    return spec(
        counts=(4,),
        chunk_bytes=CHUNK_BYTES[:1],
        slots=slots,
        generations=slots,
        offsets=slots.astype(np.uint64),
    )


def test_of_a_load_that_fails_part_of_the_way_the_leading_chunks_count(client, single):
    single.submit_load(1, one_group(), device((7,), (1,)))  # begins with the second block of a chunk
    client.engines[0].end(1, ok=False, chunks=2)
    assert outcome(single) == {1: False}
    assert single.take_partial() == ({1}, {13, 14, 15, 16})
    assert single.take_partial() == (set(), set())


def test_fewer_slots_than_promised_are_a_load_of_the_leading_chunks(client, single):
    single.submit_load(1, one_group(granted=3), device((8,), (0,)))
    assert client.engines[0].submitted[1][2:5] == ([6], list(range(10, 16)), list(range(6)))
    client.engines[0].end(1, ok=True, chunks=3)
    assert outcome(single) == {1: False}
    assert single.take_partial() == ({1}, {16, 17})


def test_nothing_is_left_of_a_load_without_a_good_chunk_or_from_before_a_reset(client, single):
    single.submit_load(1, one_group(), device((8,), (0,)))
    single.submit_load(2, one_group(), device((8,), (0,)))
    single.doom({2})
    client.engines[0].end(1, ok=False, chunks=0)
    client.engines[0].end(2, ok=False, chunks=3)
    assert outcome(single) == {1: False, 2: False}
    assert single.take_partial() == (set(), set())


def test_with_several_groups_a_load_fails_as_a_whole(client, worker):
    worker.submit_load(1, spec(), device())
    client.engines[0].end(1, ok=False, chunks=2)
    worker.submit_load(2, spec(slots=np.zeros(2, np.uint32)), device())
    assert outcome(worker) == {1: False, 2: False}
    assert worker.take_partial() == (set(), set())


def test_a_load_that_waits_for_storage_writes_nothing_after_a_flush(client, single):
    single.submit_load(1, one_group(), device((8,), (0,)))
    client.engines[0].stuck = True
    single.wait({1})
    assert client.engines[0].closed
    assert outcome(single) == {1: False}
    single.submit_load(2, one_group(), device((8,), (0,)))
    assert 2 in client.engines[1].submitted
    assert guard.fault_count() == 0


def test_flush_waits_for_its_jobs_only(client, worker):
    worker.submit_store(1, device(), spec())
    worker.submit_store(2, device(), spec())
    worker.wait({2, 99})
    assert client.engines[0].waits == [[2]]


def test_a_store_that_does_not_end_in_time_does_not_count(client, worker):
    worker.submit_store(1, device(), spec())
    client.engines[0].stuck = True
    worker.wait({1})
    client.engines[0].end(1)
    assert outcome(worker) == {1: False}
    assert worker._doomed == set()


def test_a_fault_in_a_flush_spares_no_job_of_it(client):
    class Failing(MovingTensors):
        def buffers(self):
            raise RuntimeError("the buffers are gone")

        job_options = dict

    worker = worker_of(client, tensors=Failing())
    client.attach(7)
    engine = client.engines[0]
    worker.submit_store(1, device(), spec())
    worker.submit_load(2, spec(), device())
    worker.submit_store(3, device(), spec())
    worker.wait({1, 2})  # the window fails; the wait goes on all the same
    assert engine.waits != []
    assert guard.fault_count() == 1

    def broken(jobs, timeout_s):
        raise RuntimeError("planted")

    engine.wait = broken
    worker.wait({1, 2})
    for job in (1, 2, 3):
        engine.end(job)
    assert outcome(worker) == {1: False, 2: False, 3: True}


def test_outdated_loads_fail(client, worker):
    worker.submit_load(1, spec(), device())
    worker.doom({1, 50})
    client.engines[0].end(1)
    assert outcome(worker) == {1: False}
    assert worker._doomed == set()


def test_shutdown_finishes_copies_before_the_session_ends(client, worker):
    worker.shutdown()
    assert client.engines[0].closed
    assert client.closed


def test_a_worker_without_backend_fails_everything_once():
    worker = AbsentWorker()
    worker.submit_store(1, device(), spec())
    worker.submit_load(2, spec(), device())
    worker.wait({1, 2})
    assert outcome(worker) == {1: False, 2: False}
    assert outcome(worker) == {}
    assert worker.absent
    assert worker.take_partial() == (set(), set())


class MovingTensors(HostTensors):
    """Tensors whose buffers are others at every question."""

    device = "moving"
    words = "tiled"
    windows = True

    def __init__(self):
        self.asked = 0

    def job_options(self):
        return {"buffers": self.buffers()}

    def buffers(self):
        self.asked += 1
        return [self.asked]


def test_buffers_that_move_are_asked_for_at_every_job_and_window(client):
    worker = worker_of(client, tensors=MovingTensors())
    client.attach(7)
    engine = client.engines[0]
    assert client.devices == ["moving"]
    worker.submit_store(1, device(), spec())
    worker.load_window()  # there is no load
    assert engine.windows == []
    worker.submit_load(2, spec(), device())
    worker.load_window()
    assert engine.options == {1: {"buffers": [1]}, 2: {"buffers": [2]}}
    assert engine.windows == [([3], 0.003)]
    worker.wait({2})  # a load gets a last window before its blocks are taken away
    assert engine.windows[1:] == [([4], 0.05)]
    engine.end(2)
    assert outcome(worker) == {2: True}
    worker.load_window()
    assert len(engine.windows) == 2


def test_loads_that_land_before_the_step_get_windows_until_the_last_chunk_is_there(client):
    worker = worker_of(client, tensors=MovingTensors())
    client.attach(7)
    engine = client.engines[0]
    worker.submit_load(1, spec(), device())
    waited = engine.wait

    def arrives_with_the_third(jobs, timeout_s):
        if len(engine.windows) == 3:
            engine.end(1)
        return waited(jobs, timeout_s)

    engine.wait = arrives_with_the_third
    worker.land_loads()
    assert len(engine.windows) == 3
    assert outcome(worker) == {1: True}
    assert worker.take_unwritten() == set()


@pytest.mark.parametrize("tensors", [MovingTensors, lambda: HostTensors([])])
def test_a_load_that_does_not_land_before_the_step_is_ended(client, tensors):
    worker = worker_of(client, tensors=tensors())
    worker._load_deadline_ms = 30
    client.attach(7)
    client.engines[0].stuck = True
    worker.submit_load(1, spec(), device())
    worker.land_loads()
    assert client.engines[0].closed  # nothing of it can come later
    assert outcome(worker) == {1: False}
    assert worker.take_unwritten() == set(range(10, 16))
    worker.submit_load(2, spec(), device())
    assert list(client.engines[1].submitted) == [2]


def test_plain_memory_needs_no_windows(client, worker):
    worker.submit_load(1, spec(), device())
    worker.load_window()
    assert client.engines[0].windows == []
    assert client.engines[0].options == {1: {}}


def test_reports_of_workers_add_up_in_any_order():
    ours = WorkerReport({1: 1, 2: 1}, failed_jobs={2})
    other = WorkerReport({1: 1}, failed_jobs={1})
    for merged in (ours.aggregate(other), other.aggregate(ours)):
        assert merged.completed_jobs == {1: 2, 2: 1}
        assert merged.failed_jobs == {1, 2}
    assert ours.aggregate(OffloadingWorkerMetadata({2: 1})).failed_jobs == {2}
    assert not ours.aggregate(other).absent
    assert other.aggregate(WorkerReport({1: 1}, absent=True)).absent
