"""From tensors on device "tpu" through a real daemon's arena and back, while steps run in between."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
import torch
from harness import Daemon, keys_of, until
from pools import Pool, arrays

from kvtier import Client, CopyEngine, InvalidArgument, Namespace
from kvtier.client import torch_tpu
from kvtier.io import native

WAIT_S = 30.0
STORED, TARGETS = [2, 3, 4, 9, 11], [20, 5, 6, 7, 0]


class Lane:
    """A pool, a daemon's namespace and a copy engine between them."""

    def __init__(self, client: Client, pool: Pool) -> None:
        self.pool = pool
        self.ns: Namespace = client.namespace({"pool": pool.kind}, pool.chunk_bytes)
        self.engine: CopyEngine = client.copy_engine(2, device=pool.buffers.device)
        self.layout = self.engine.add_layout(pool.regions(), 24, 1)
        self.job = 0

    def submit(self, direction: Any, blocks: list[int], lease: Any, first_chunk: int = 0) -> int:
        self.job += 1
        ids, positions = arrays(blocks)
        self.engine.submit(
            self.job,
            direction,
            [self.layout],
            [len(blocks)],
            ids,
            positions,
            tuple(column[first_chunk : first_chunk + len(blocks)] for column in lease.refs),
            buffers=self.pool.buffers.buffers(),
        )
        return self.job

    def store(self, keys: list[bytes], blocks: list[int]) -> None:
        lease = self.ns.reserve_slots(keys)
        assert len(lease) == len(keys)
        job = self.submit("store", blocks, lease)
        assert self.engine.wait([job], WAIT_S)
        assert [row[:2] for row in self.engine.poll()] == [(job, True)]
        assert self.ns.commit_slots(lease, wait=True)


@pytest.fixture
def lane_of(daemon: Daemon, tpu: Any, plugin: Any) -> Iterator[Callable[[str], Lane]]:
    with daemon.client() as client:
        lanes: list[Lane] = []

        def make(kind: str) -> Lane:
            lanes.append(Lane(client, Pool(kind, tpu)))
            return lanes[-1]

        yield make
        for lane in lanes:
            lane.engine.close()


@pytest.mark.parametrize("kind", ["layer-major", "block-major"])
def test_blocks_come_back_into_other_blocks_while_steps_run(
    lane_of: Callable[[str], Lane], plugin: Any, kind: str
) -> None:
    lane = lane_of(kind)
    pool, keys = lane.pool, keys_of(kind, len(STORED))
    pool.step([1, 2, 3], 0.5)  # the store must see what this wrote
    saved = pool.contents(STORED)
    lane.store(keys, STORED)
    pool.poison(STORED)

    plugin.set("latency_us", 2000)  # so that one window does not do it all
    lease = lane.ns.lease_slots(keys)
    assert len(lease) == len(keys)
    jobs = {lane.submit("load", [block], lease, chunk): True for chunk, block in enumerate(TARGETS)}
    windows = 0
    while lane.engine.pending():
        lane.engine.load_window(pool.buffers.buffers(), 0.001)
        windows += 1
        pool.step([1, 12], 0.25)
    assert windows > 1
    assert {row[0]: row[1] for row in lane.engine.poll()} == jobs
    lane.ns.release_slots(lease)
    pool.expect_loaded(saved, TARGETS)
    pool.check()
    assert lane.engine.counters()["load_bytes"] == len(TARGETS) * pool.chunk_bytes


def test_compiled_steps_between_windows(lane_of: Callable[[str], Lane], plugin: Any) -> None:
    """As an engine's model runs: one compiled program writes the blocks of a step into the pool."""
    lane = lane_of("block-major")
    pool, keys = lane.pool, keys_of("compiled", len(STORED))
    write = torch.compile(lambda pool, at, new: pool.index_copy_(0, at, new), backend="tpu", dynamic=False)
    where, new = torch.tensor([1, 12]), torch.full((2, *pool.mirror[0].shape[1:]), 0.5)
    on_device = where.to(pool.tensors[0].device), new.to(pool.tensors[0].device)

    def step() -> None:
        write(pool.tensors[0], *on_device)
        pool.mirror[0].index_copy_(0, where, new)

    saved = pool.contents(STORED)
    lane.store(keys, STORED)
    step()
    pool.poison(STORED)
    plugin.set("latency_us", 2000)
    lease = lane.ns.lease_slots(keys)
    jobs = {lane.submit("load", [block], lease, chunk): True for chunk, block in enumerate(TARGETS)}
    windows = 0
    while lane.engine.pending():
        lane.engine.load_window(pool.buffers.buffers(), 0.001)
        windows += 1
        step()
    assert windows > 1
    assert {row[0]: row[1] for row in lane.engine.poll()} == jobs
    lane.ns.release_slots(lease)
    pool.expect_loaded(saved, TARGETS)
    pool.check()


def test_a_store_waits_for_its_step_and_the_engine_does_not(
    lane_of: Callable[[str], Lane], plugin: Any
) -> None:
    lane = lane_of("block-major")
    keys = keys_of("fence", 2)
    lease = lane.ns.reserve_slots(keys)
    plugin.set("ready_gate", 1)  # what was launched does not end
    copies = plugin.get("copies_to_host")
    job = lane.submit("store", STORED[:2], lease)  # returns all the same
    assert not lane.engine.wait([job], 0.2)
    assert plugin.get("copies_to_host") == copies
    plugin.set("ready_gate", 0)
    assert lane.engine.wait([job], WAIT_S)
    assert [row[:2] for row in lane.engine.poll()] == [(job, True)]
    assert plugin.get("copies_to_host") > copies
    lane.ns.abort_slots(lease)


def test_a_step_moves_the_buffers(tpu: Any, plugin: Any) -> None:
    """Why they are asked for at every submit."""
    pool = Pool("layer-major", tpu)
    before = pool.buffers.buffers().tolist()
    pool.step([3], 1.0)
    assert pool.buffers.buffers().tolist() != before


def test_a_store_reads_what_was_there_when_it_was_submitted(
    lane_of: Callable[[str], Lane], plugin: Any
) -> None:
    """The next step writes the same blocks while the store is still in the device's queue."""
    lane = lane_of("layer-major")
    pool, keys = lane.pool, keys_of("early", len(STORED))
    saved = pool.contents(STORED)
    lease = lane.ns.reserve_slots(keys)
    plugin.set("queue_gate", 1)
    job = lane.submit("store", STORED, lease)
    pool.step(STORED, 3.0)
    pool.buffers.buffers()
    plugin.set("queue_gate", 0)
    assert lane.engine.wait([job], WAIT_S)
    assert [row[:2] for row in lane.engine.poll()] == [(job, True)]
    assert lane.ns.commit_slots(lease, wait=True)

    read = lane.ns.lease_slots(keys)
    lane.submit("load", TARGETS, read)
    lane.engine.load_window(pool.buffers.buffers(), WAIT_S)
    assert until(lambda: not lane.engine.pending(), "the load")
    lane.ns.release_slots(read)
    pool.expect_loaded(saved, TARGETS)
    pool.check()


def test_nothing_is_held_in_the_end(lane_of: Callable[[str], Lane], plugin: Any) -> None:
    before = plugin.get("aliases"), plugin.get("errors")
    lane = lane_of("block-major")
    lane.store(keys_of("held", 3), [1, 2, 3])
    assert until(lambda: (plugin.get("aliases"), plugin.get("errors")) == before, "the end of all holds")


@pytest.mark.parametrize("wrong", ["buffer_client", "client_api", "buffer_handle"])
def test_a_torch_tpu_that_is_laid_out_otherwise_is_refused(tpu: Any, plugin: Any, wrong: str) -> None:
    """As a build would be that says it is a known release: no read may fault, none may be believed."""
    pool = Pool("layer-major", tpu)
    layout = asdict(torch_tpu.TESTED["0.2.0"])
    opened = (torch_tpu._loaded("libpywrap"), torch_tpu.plugin_path(), pool.tensors[0]._cdata)
    assert native.TorchTpuBuffers(*opened, **layout).client == pool.buffers.device.client
    far = 1 << 40  # nothing is there
    with pytest.raises(RuntimeError, match="not laid out"):
        native.TorchTpuBuffers(*opened, **layout | {wrong: far})


def test_a_tensor_that_is_on_no_tpu_has_no_buffer(tpu: Any, plugin: Any) -> None:
    pool = Pool("layer-major", tpu)
    pool.buffers._numbers = [pool.mirror[0]._cdata]
    with pytest.raises(InvalidArgument, match="tensor 0: it has no buffer on a TPU"):
        pool.buffers.buffers()


def test_bytes_that_do_not_arrive_are_found_before_the_engines_tensors_are_touched(
    tpu: Any, plugin: Any
) -> None:
    plugin.set("fail:copy", 2)  # the load
    with pytest.raises(InvalidArgument, match="did not arrive"):
        Pool("layer-major", tpu)
    Pool("layer-major", tpu).check()
