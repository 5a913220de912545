"""A worker whose device hangs: no wait without an end, and nothing is free that may still be written."""

import pytest
from fakes import FakeClient
from kvtier_connectors.common import guard
from kvtier_connectors.vllm_connector.worker import CLOSE_TIMEOUT_S
from test_worker import device, outcome, spec, worker_of


def attached():
    guard.faults.clear()
    client = FakeClient()
    worker = worker_of(client)
    client.attach(7)
    return client, worker


def test_a_store_that_was_given_up_is_reported_when_it_has_landed():
    client, worker = attached()
    worker.submit_store(1, device(), spec())
    worker.submit_load(2, spec(), device())
    engine = client.engines[0]
    engine.stuck, engine.late = True, {1}
    worker.wait({2})
    assert engine.closes == [CLOSE_TIMEOUT_S]  # bounded, and the load is nobody's any more
    assert outcome(worker) == {2: False}
    assert outcome(worker) == {}  # of the store the scheduler learns nothing, so its slots stay reserved
    engine.late.clear()
    assert outcome(worker) == {1: False}
    assert outcome(worker) == {}
    assert guard.fault_count() == 0


@pytest.mark.parametrize("in_order", [True, False])
def test_a_load_that_was_given_up_must_not_land_in_blocks_in_use(in_order):
    client, worker = attached()
    worker.submit_load(1, spec(), device())
    engine = client.engines[0]
    engine.stuck, engine.late, engine.in_order_queue = True, {1}, in_order
    worker.land_loads()
    # Behind a queue that keeps the order the step comes later; else somebody has to wait for it.
    assert engine.closes[0] == CLOSE_TIMEOUT_S
    assert (None in engine.closes) == (not in_order)
    assert outcome(worker) == {1: False}
    assert guard.fault_count() == 0


def test_shutdown_does_not_wait_for_a_hung_device():
    client, worker = attached()
    worker.submit_store(1, device(), spec())
    engine = client.engines[0]
    engine.stuck, engine.late = True, {1}
    worker.shutdown()
    assert engine.closes == [CLOSE_TIMEOUT_S]
    assert client.closed
