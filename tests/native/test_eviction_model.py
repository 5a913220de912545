"""An arena far smaller than the working set: what is pinned stays, and a hit holds what was written last."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from native_host import PAGE, Host, key

import tpu_sync_native as native

pytestmark = pytest.mark.timeout(280)

GRANTED, PENDING = 0, 2


class EvictionMachine(RuleBasedStateMachine):
    """An arena for 512 chunks and 2000 keys: what is pinned stays, what is read is what was written last."""

    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.host = Host(2 << 20, slab_bytes=2 << 20, policy=self.policy)
        self.ns = self.host.store.open_namespace(bytes(16), PAGE)
        _, self.session = self.host.attach()
        self.reads: list[tuple[int, list[int], native.SlotRefs]] = []
        self.written: set[int] = set()

    def teardown(self) -> None:
        try:
            for lease, _, _ in self.reads:
                self.session.release(lease)
            self.host.store.close_session(1, True)
            assert self.host.store.stats()["pinned_slots"] == 0
            assert self.host.store.audit() == []
        finally:
            self.host.close()

    def _word(self, offset: int) -> np.ndarray:
        return np.frombuffer(self.session.view(int(offset), PAGE, True), dtype="<u4")

    @rule(first=st.integers(0, 1900), count=st.integers(1, 300))
    def store(self, first: int, count: int) -> None:
        numbers = list(range(first, first + count))
        write = self.session.reserve(self.ns, [key(n) for n in numbers])
        granted = [n for n, grant in zip(numbers, write.grants, strict=True) if grant == GRANTED]
        for number, offset in zip(granted, write.refs.offsets, strict=True):
            self._word(offset)[[0, -1]] = number
        if write.lease:
            assert self.session.commit(write.lease)
        self.written.update(granted)
        assert PENDING not in write.grants

    @rule(first=st.integers(0, 1900), count=st.integers(1, 100))
    def load(self, first: int, count: int) -> None:
        numbers = list(range(first, first + count))
        read = self.session.lease(self.ns, [key(n) for n in numbers])
        assert read.count <= count
        if read.lease:
            self.reads.append((read.lease, numbers[: read.count], read.refs))
        assert self.written.issuperset(numbers[: read.count])

    @precondition(lambda self: bool(self.reads))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, _, _ = self.reads.pop(data.draw(st.integers(0, len(self.reads) - 1)))
        self.session.release(lease)

    @rule()
    def evict(self) -> None:
        self.host.store.evict(self.ns, 64 * PAGE)

    @invariant()
    def pinned_chunks_stay(self) -> None:
        for _, numbers, refs in self.reads:
            assert self.session.unchanged(refs.slots, refs.generations).all()
            for number, offset in zip(numbers, refs.offsets, strict=True):
                assert self._word(offset)[[0, -1]].tolist() == [number, number]

    @invariant()
    def audit_is_clean(self) -> None:
        self.session.ping()
        assert self.host.store.audit() == []


class EvictionMachineS3Fifo(EvictionMachine):
    """The same under the other policy."""

    policy = "s3fifo"


TestEviction = EvictionMachine.TestCase
TestEvictionS3Fifo = EvictionMachineS3Fifo.TestCase
TestEviction.settings = TestEvictionS3Fifo.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
