"""The vLLM connector's worker over real "tpu" tensors and a real daemon, without an engine."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from harness import PATIENT_MS, Daemon, keys_of, until
from kvtier_connectors.common import guard
from kvtier_connectors.vllm_connector.devices import TpuTensors, tensors_of
from kvtier_connectors.vllm_connector.layout import GroupPlan, check_regions, regions_of
from kvtier_connectors.vllm_connector.transfer import SlotSpec
from kvtier_connectors.vllm_connector.worker import KVTierWorker
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

from kvtier import Client

BLOCKS, LAYERS = 32, 2
PAGE = (2, 16, 64)  # keys and values, tokens, values
PAGE_BYTES = 4 * 2 * 16 * 64
PLAN = GroupPlan(0, 16, 2, 2, LAYERS * PAGE_BYTES, 1, False)


class Cache:
    """A KV cache as an engine has it, its canonical views, and a mirror of it in host memory."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(11)
        self.mirror = [torch.rand((BLOCKS, *PAGE), generator=generator) for _ in range(LAYERS)]
        self.layers = [one.to(device) for one in self.mirror]
        views = [
            torch.empty(0, dtype=torch.int8, device=device)
            .set_(layer.untyped_storage())
            .view(BLOCKS, PAGE_BYTES)
            for layer in self.layers
        ]
        self.canonical = CanonicalKVCaches(
            [CanonicalKVCacheTensor(view, PAGE_BYTES) for view in views],
            [[CanonicalKVCacheRef(index, PAGE_BYTES) for index in range(LAYERS)]],
        )

    def step(self, blocks: list[int], value: float) -> None:
        for layer in (*self.layers, *self.mirror):
            for block in blocks:
                layer[block] += value

    def poison(self, blocks: list[int]) -> None:
        for layer in (*self.layers, *self.mirror):
            for block in blocks:
                layer[block] = -1.0

    def check(self) -> None:
        for layer, mirror in zip(self.layers, self.mirror, strict=True):
            assert torch.equal(layer.cpu(), mirror)
            assert torch.equal((layer * 2.0).cpu(), mirror * 2.0)


class Rig:
    def __init__(self, daemon: Daemon, client: Client, cache: Cache) -> None:
        self.daemon, self.client, self.cache = daemon, client, cache
        tensors = tensors_of(cache.canonical)
        assert isinstance(tensors, TpuTensors)
        regions = regions_of(cache.canonical, tensors, 0)
        check_regions(PLAN, regions)
        self.ns = client.namespace({"test": "worker"}, PLAN.chunk_bytes)
        self.worker = KVTierWorker(
            client,
            [PLAN],
            [regions],
            tensors,
            num_blocks=BLOCKS,
            part=0,
            copy_threads=1,
            load_deadline_ms=20_000,
            load_window_ms=1,
        )
        self.jobs = 0

    def spec(self, lease: Any) -> SlotSpec:
        return SlotSpec(
            ticket=1,
            boot_id=lease.boot_id,
            counts=(len(lease),),
            chunk_bytes=(PLAN.chunk_bytes,),
            slots=lease.slots,
            generations=lease.generations,
            offsets=lease.offsets,
        )

    def store(self, lease: Any, blocks: list[int]) -> int:
        self.jobs += 1
        assert self.worker.submit_store(self.jobs, gpu(blocks), self.spec(lease))
        return self.jobs

    def load(self, lease: Any, blocks: list[int]) -> int:
        self.jobs += 1
        assert self.worker.submit_load(self.jobs, self.spec(lease), gpu(blocks))
        return self.jobs

    def outcome(self) -> dict[int, bool]:
        """{job: succeeded} of what has ended; steps and windows go on until something has."""
        finished = until(self.worker.get_finished, "a job's end", 30.0)
        failed = self.worker.take_failed()
        return {one.job_id: one.job_id not in failed for one in finished}


def gpu(blocks: list[int]) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(blocks, [len(blocks)], [0])


@pytest.fixture
def rig(daemon: Daemon, tpu: torch.device, plugin: Any) -> Iterator[Rig]:
    guard.faults.clear()
    client = Client.connect(daemon.address, managed=True, deadline_ms=PATIENT_MS)
    until(lambda: client.connected, "the attachment")
    one = Rig(daemon, client, Cache(tpu))
    yield one
    one.worker.shutdown()
    assert guard.fault_count() == 0


def stored(rig: Rig, name: str, blocks: list[int]) -> list[bytes]:
    """Keys under which these blocks, two to a chunk, are stored now."""
    keys = keys_of(name, len(blocks) // 2)
    lease = rig.ns.reserve_slots(keys)
    job = rig.store(lease, blocks)
    assert rig.outcome() == {job: True}
    assert rig.ns.commit_slots(lease, wait=True)
    return keys


def test_a_prefix_comes_back_while_other_requests_decode(rig: Rig, plugin: Any) -> None:
    cache = rig.cache
    cache.step([4, 5], 0.5)
    keys = stored(rig, "prefix", [4, 5, 8, 9, 2, 3])
    saved = [mirror[[4, 5, 8, 9, 2, 3]].clone() for mirror in cache.mirror]
    cache.poison([4, 5, 8, 9, 2, 3])

    plugin.set("latency_us", 1000)
    leases = [rig.ns.lease_slots([key]) for key in keys]
    targets = [[20, 21], [12, 11], [30, 31]]
    jobs = {rig.load(lease, blocks) for lease, blocks in zip(leases, targets, strict=True)}
    done: dict[int, bool] = {}
    steps = 0
    while done.keys() != jobs:
        rig.worker.load_window()  # the connector calls it in handle_preemptions
        cache.step([6, 7], 0.25)
        steps += 1
        done |= {one.job_id: True for one in rig.worker.get_finished()}
        assert steps < 1000
    assert rig.worker.take_failed() == set()
    for lease in leases:
        rig.ns.release_slots(lease)
    for mirror, source in zip(cache.mirror, saved, strict=True):
        mirror[[20, 21, 12, 11, 30, 31]] = source
    cache.check()
    assert steps > 1


def test_blocks_of_a_flushed_store_may_be_written_at_once(rig: Rig, plugin: Any) -> None:
    """A preemption: `wait` returns when the blocks are free, and what was stored is from before."""
    cache, keys = rig.cache, keys_of("flush", 2)
    saved = [mirror[[0, 1, 2, 3]].clone() for mirror in cache.mirror]
    plugin.set("latency_us", 20_000)
    lease = rig.ns.reserve_slots(keys)
    job = rig.store(lease, [0, 1, 2, 3])
    rig.worker.wait({job})
    cache.poison([0, 1, 2, 3])
    assert rig.outcome() == {job: True}
    assert rig.ns.commit_slots(lease, wait=True)

    plugin.set("latency_us", 0)
    read = rig.ns.lease_slots(keys)
    again = rig.load(read, [16, 17, 18, 19])
    rig.worker.wait({again})  # a load that is flushed gets its window there
    assert rig.outcome() == {again: True}
    rig.ns.release_slots(read)
    for mirror, source in zip(cache.mirror, saved, strict=True):
        mirror[[16, 17, 18, 19]] = source
    cache.check()


def test_a_device_that_fails_is_a_failed_job(rig: Rig, plugin: Any) -> None:
    keys = keys_of("broken", 1)
    lease = rig.ns.reserve_slots(keys)
    plugin.set("fail:copy", 1)
    job = rig.store(lease, [0, 1])
    assert rig.outcome() == {job: False}
    rig.ns.abort_slots(lease)
    assert stored(rig, "after it", [0, 1])
    rig.cache.check()


def test_the_daemon_dies_under_a_load(daemon: Daemon, rig: Rig, plugin: Any) -> None:
    cache = rig.cache
    keys = stored(rig, "lost", [0, 1])
    read = rig.ns.lease_slots(keys)
    job = rig.load(read, [8, 9])
    daemon.kill()
    until(lambda: not rig.client.connected, "the loss")
    rig.worker.load_window()
    assert job in rig.outcome()  # either way; the steps below must not notice
    cache.step([20], 1.0)
    for layer, mirror in zip(cache.layers, cache.mirror, strict=True):
        rest = [block for block in range(BLOCKS) if block not in (8, 9)]
        assert torch.equal(layer.cpu()[rest], mirror[rest])
