"""Two tiers against a small truthful model: chunks are stored, demoted, dropped from DRAM, promoted, cleared.

The arena is larger than all chunks together and the root has no quota, so nothing leaves by itself: what was
committed is readable until its namespace is cleared, from DRAM or from storage, and every byte is compared.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from native_host import PAGE, key
from tiered_host import WAIT_S, TieredHost, chunk_payload, eventually, fill

pytestmark = pytest.mark.timeout(280)

KEYS = st.lists(st.integers(0, 20), min_size=1, max_size=10)
NAMESPACES = st.integers(0, 1)


@dataclass
class Model:
    """What must be true. A chunk is (namespace, number)."""

    host: set[tuple[int, int]] = field(default_factory=set)
    storage: set[tuple[int, int]] = field(default_factory=set)
    pinned: dict[int, tuple[int, list[int]]] = field(default_factory=dict)  # lease -> its chunks

    def leading(self, ns: int, numbers: list[int]) -> list[int]:
        found = []
        for number in numbers:
            if (ns, number) not in self.host | self.storage:
                break
            found.append(number)
        return found


class TieredMachine(RuleBasedStateMachine):
    """One engine, one daemon, one root."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="kvtier-tiers-"))
        self.tiers = TieredHost(self.root)
        self.model = Model()

    @initialize()
    def open(self) -> None:
        for number in range(2):
            assert self.tiers.open_namespace(number, PAGE) == number
        self.number, self.session = self.tiers.attach()

    def teardown(self) -> None:
        try:
            self.tiers.store.close_session(self.number, True)
            self.tiers.flush()  # a demote pins what it reads
            stats = self.tiers.store.stats()
            for name in (
                "read_leases",
                "pinned_slots",
                "reserved_slots",
                "promoting_slots",
                "quarantined_slots",
            ):
                assert stats[name] == 0, (name, stats[name])
            assert self.tiers.store.audit() == []
        finally:
            self.tiers.close()
            shutil.rmtree(self.root)

    @rule(ns=NAMESPACES, numbers=KEYS)
    def store(self, ns: int, numbers: list[int]) -> None:
        write = self.session.reserve(ns, [key(n) for n in numbers])
        fresh = [n for n in dict.fromkeys(numbers) if (ns, n) not in self.model.host]
        assert len(write.refs) == len(fresh)
        if not fresh:
            return
        fill(self.session, write.refs, [chunk_payload(ns, n, PAGE) for n in fresh])
        assert self.session.commit(write.lease)
        self.model.host |= {(ns, n) for n in fresh}

    @rule(ns=NAMESPACES)
    def drop_from_dram(self, ns: int) -> None:
        self.tiers.flush()
        self.model.storage |= self.model.host
        pinned = {(of, n) for of, numbers in self.model.pinned.values() for n in numbers}
        gone = {chunk for chunk in self.model.host if chunk[0] == ns} - pinned
        assert self.tiers.store.evict(ns, 1 << 40) == len(gone) * PAGE
        self.model.host -= gone

    @rule(ns=NAMESPACES, numbers=KEYS)
    def lookup(self, ns: int, numbers: list[int]) -> None:
        found = self.model.leading(ns, numbers)
        in_dram = sum((ns, n) in self.model.host for n in found)
        names = [key(n) for n in numbers]
        assert self.session.lookup_tiers(ns, names) == (len(found), in_dram)
        assert self.tiers.store.lookup(ns, names) == len(found)

    @rule(ns=NAMESPACES, numbers=KEYS, keep=st.booleans())
    def load(self, ns: int, numbers: list[int], keep: bool) -> None:
        found = self.model.leading(ns, numbers)
        read = self.session.lease(ns, [key(n) for n in numbers])
        assert read.count == len(found)
        if not found:
            return
        assert self.session.wait_ready(read.refs.slots, read.refs.generations, WAIT_S) == len(found)
        for number, offset in zip(found, read.refs.offsets, strict=True):
            assert bytes(self.session.view(int(offset), PAGE, False)) == chunk_payload(ns, number, PAGE)
        self.model.host |= {(ns, n) for n in found}
        if keep:
            self.model.pinned[read.lease] = (ns, found)
        else:
            self._release(read.lease)

    @rule(ns=NAMESPACES, numbers=KEYS)
    def prefetch(self, ns: int, numbers: list[int]) -> None:
        found = self.model.leading(ns, numbers)
        coming = {(ns, n) for n in found} - self.model.host
        assert self.tiers.store.prefetch(ns, [key(n) for n in numbers]) == len(coming)
        stats = self.tiers.store.stats
        eventually(lambda: stats()["promoting_slots"] == 0, "the prefetched chunks are here")
        self.model.host |= coming

    @precondition(lambda self: bool(self.model.pinned))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.model.pinned)), "lease")
        del self.model.pinned[lease]
        self._release(lease)

    def _release(self, lease: int) -> None:
        self.session.release(lease)
        self.session.ping()

    @rule(ns=NAMESPACES)
    def clear(self, ns: int) -> None:
        self.tiers.store.clear_namespace(ns)
        everything = [key(n) for n in range(21)]
        assert self.tiers.store.lookup(ns, everything) == 0
        assert self.session.lease(ns, everything).count == 0
        for lease in [lease for lease, (of, _) in self.model.pinned.items() if of == ns]:
            del self.model.pinned[lease]
            self._release(lease)
        self.model.host = {chunk for chunk in self.model.host if chunk[0] != ns}
        self.model.storage = {chunk for chunk in self.model.storage if chunk[0] != ns}
        self.tiers.await_ready(ns)  # until then nothing of it is admitted to storage
        # An engine's lookup is a hint: the tags of what was cleared go a little later.
        eventually(lambda: not any(self.session.lookup(ns, [one]) for one in everything), "no tag is left")

    @invariant()
    def nothing_is_lost(self) -> None:
        stats = self.tiers.store.stats()
        assert (stats["promote_losses"], stats["promote_refusals"]) == (0, 0)
        assert self.tiers.store.audit() == []


TestTiers = TieredMachine.TestCase
TestTiers.settings = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
