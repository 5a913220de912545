"""kvtier under vllm_torchtpu's name: its interface as published, and the hooks in the order of its runner."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvtier_connectors.common import guard
from kvtier_connectors.vllm_torchtpu import TPURaidenOffloadingConnector, interface
from kvtier_connectors.vllm_torchtpu.connector import in_rows, rows_of
from test_tpu_worker import BLOCKS, LAYERS, PAGE_BYTES, Rig, gpu, rig, stored
from torchtpu_wheel import Call, interface_of
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    TransferJob,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker

__all__ = ["rig"]  # the fixture

WHEEL = (
    Path(__file__).parents[2]
    / ".cache"
    / "wheels"
    / f"vllm_torchtpu_core-{interface.VERSION}-py3-none-any.whl"
)


def drift(published: Any, calls: Any, hooks: Any, names: Any) -> list[str]:
    """Where the published interface and the table differ."""
    pairs = (
        ("calls", published.calls, calls),
        ("hooks", published.hooks, hooks),
        ("names", published.names, names),
    )
    return [
        f"{what}: published {sorted(theirs - ours)}, pinned {sorted(ours - theirs)}"
        for what, theirs, ours in pairs
        if theirs != ours
    ]


def test_the_table_is_what_the_release_publishes() -> None:
    assert WHEEL.exists(), "run `make test-device`, which fetches it"
    published = interface_of(WHEEL)
    assert published.version == interface.VERSION
    pinned = {Call(*call) for call in interface.CALLS}
    assert drift(published, pinned, interface.HOOKS, interface.NAMES) == []
    planted = pinned - {Call("get_finished", 1, ())}
    assert len(drift(published, planted, interface.HOOKS, interface.NAMES | {"Other"})) == 2


@pytest.mark.parametrize("call", sorted(interface.CALLS), ids=lambda call: f"{call[0]}/{call[1]}{call[2]}")
def test_every_call_fits_our_class(call: tuple[str, int, tuple[str, ...]]) -> None:
    hook, positional, keywords = call
    signature = inspect.signature(getattr(TPURaidenOffloadingConnector, hook))
    signature.bind(*range(1 + positional), **dict.fromkeys(keywords))  # with self


def test_what_their_connector_defines_ours_has() -> None:
    assert TPURaidenOffloadingConnector.__name__ in interface.NAMES
    for hook, parameters in interface.HOOKS:
        ours = inspect.getattr_static(TPURaidenOffloadingConnector, hook)
        if isinstance(ours, property):
            continue
        bound = getattr(TPURaidenOffloadingConnector, hook)
        named = [name for name in inspect.signature(bound).parameters if name != "self"]
        assert named[: len(parameters)] == list(parameters), hook
    assert TPURaidenOffloadingConnector.get_required_kvcache_layout(None) is None


class Runner:
    """The calls of vllm_torchtpu's runner around a step, in its order."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        spec = SimpleNamespace(
            replicated_layout=False,
            config=SimpleNamespace(
                groups=[object()], canonical_layout=False, parallel=SimpleNamespace(rank=0)
            ),
            get_worker=self._worker,
        )
        side = OffloadingConnectorWorker(spec, None, SimpleNamespace(num_blocks=BLOCKS))  # type: ignore[arg-type]
        self.connector = TPURaidenOffloadingConnector.__new__(TPURaidenOffloadingConnector)
        self.connector.connector_worker = side
        self.connector._failed_jobs, self.connector._lost_blocks = set(), set()
        self.connector._connector_metadata = None
        self.registered: Any = None
        # One layer as it is, one as a list of two views of its storage, as Mamba layers are.
        first, second = rig.cache.layers
        self.connector.register_kv_caches({"attention": first, "mamba": [second[:, :1], second[:, 1:]]})
        self.connector.register_runner(self)

    def _worker(self, caches: Any) -> Any:
        self.registered = caches
        return self.rig.worker

    def step(
        self, *, stores: Any = None, loads: Any = None, flush: Any = None, inline: bool = False
    ) -> tuple[set[str], set[int], Any]:
        """(requests whose loads ended, blocks that failed, the report to the scheduler)"""
        connector, metadata = self.connector, OffloadingConnectorMetadata(loads or {}, stores or {}, flush)
        connector.handle_preemptions(metadata)
        connector.bind_connector_metadata(metadata)
        if inline:
            connector.start_load_kv(None, wait_for_completion=True, report_completion=False)
        else:
            connector.start_load_kv(None)
        self.rig.cache.step([28], 0.5)
        connector.wait_for_save()
        _, received = connector.get_finished(set())
        blocks = connector.get_block_ids_with_load_errors()
        assert connector.get_block_ids_with_load_errors_group_index() is None
        report = connector.build_connector_worker_meta()
        connector.clear_connector_metadata()
        return received, blocks, report

    def until_received(self, steps: int = 2000) -> tuple[set[str], set[int], Any]:
        for _ in range(steps):
            answer = self.step()
            if answer[0]:
                return answer
        raise AssertionError("no load ended")


def test_layers_that_share_storages_are_rows(rig: Rig) -> None:
    caches = Runner(rig).registered
    assert [tuple(one.tensor.shape) for one in caches.tensors] == [(BLOCKS, PAGE_BYTES)] * LAYERS
    assert [ref.tensor_idx for ref in caches.group_data_refs[0]] == [0, 1]
    with pytest.raises(ValueError, match="block by block"):
        rows_of({"odd": rig.cache.layers[0]}, BLOCKS - 1, groups=1)
    assert len(rows_of({"one": rig.cache.layers[0]}, BLOCKS, groups=3).group_data_refs) == 3


def test_only_what_lies_block_by_block_is_moved_in_rows() -> None:
    """Elsewhere a row would be parts of several blocks: wrong tokens."""
    pool = torch.zeros(6 * BLOCKS * 8)
    assert in_rows(pool.view(BLOCKS, 2, 24), BLOCKS)
    assert in_rows(pool.view(BLOCKS * 3, 16), BLOCKS)  # three kernel blocks a block
    assert in_rows(pool.view(BLOCKS, 48)[:, 16:32], BLOCKS)  # a layer within the row
    assert in_rows(pool.view(BLOCKS, 2, 24).transpose(0, 1), BLOCKS)
    assert not in_rows(pool.view(2, BLOCKS, 24), BLOCKS)  # keys before values
    assert not in_rows(pool.view(2, BLOCKS, 24)[0], BLOCKS)  # layers one after another
    with pytest.raises(ValueError, match="block by block"):
        rows_of({"mamba": [pool.view(2, BLOCKS, 24)]}, BLOCKS, groups=1)


def test_a_cache_that_cannot_be_moved_is_an_engine_without_cache(rig: Rig) -> None:
    connector = Runner(rig).connector
    first, second = rig.cache.layers
    connector.connector_worker.worker = None
    connector.register_kv_caches({"attention": first, "odd": second.view(2, BLOCKS, -1)})
    assert connector.connector_worker.worker.absent
    assert guard.fault_count() == 1
    guard.faults.clear()


@pytest.mark.parametrize("inline", [False, True])
def test_store_and_load_through_the_hooks(rig: Rig, inline: bool) -> None:
    runner, cache = Runner(rig), rig.cache
    saved = [mirror[[0, 1]].clone() for mirror in cache.mirror]
    lease = rig.ns.reserve_slots([b"hooks" * 4])
    runner.step(stores={1: TransferJob("a", gpu([0, 1]), rig.spec(lease))})  # submitted in the next step
    done: set[int] = set()
    for _ in range(2000):
        report = runner.step()[2]
        done |= set(report.completed_jobs) if report else set()
        if done:
            break
    assert done == {1}
    assert rig.ns.commit_slots(lease, wait=True)
    cache.poison([0, 1])

    read = rig.ns.lease_slots([b"hooks" * 4])
    answer = runner.step(loads={2: TransferJob("b", rig.spec(read), gpu([10, 11]))}, inline=inline)
    if not inline:
        assert answer[0] == set()  # its first window is before the next step
        answer = runner.until_received()
    assert answer[0] == {"b"}
    assert answer[1] == set()
    assert answer[2].failed_jobs == set()
    rig.ns.release_slots(read)
    for mirror, source in zip(cache.mirror, saved, strict=True):
        mirror[[10, 11]] = source
    cache.check()


def test_a_failed_load_is_named_by_its_blocks(rig: Rig, plugin: Any) -> None:
    keys = stored(rig, "failing", [0, 1])
    runner = Runner(rig)
    read = rig.ns.lease_slots(keys)
    plugin.set("fail:copy", 1)
    runner.step(loads={7: TransferJob("c", rig.spec(read), gpu([10, 11]))})
    received, blocks, report = runner.until_received()
    assert (received, blocks, report.failed_jobs) == ({"c"}, {10, 11}, {7})
    rig.ns.release_slots(read)

    void = rig.spec(read)
    void.void = True
    received, blocks, report = runner.step(loads={8: TransferJob("d", void, gpu([12, 13]))})
    assert (received, blocks, report.failed_jobs) == ({"d"}, {12, 13}, {8})
    assert runner.step()[:2] == (set(), set())
