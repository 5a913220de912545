"""Index, slots, leases, epochs, sessions and quarantine against a small truthful model.

The exact machine runs twice: through the `Store` methods (as gRPC does) and through a `Session` over a real
ring (as engines do). Its arena is larger than anything it can fill, so nothing is evicted and every answer
is predicted to the slot.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from native_host import PAGE, Host, key

import tpu_sync_native as native

pytestmark = pytest.mark.timeout(280)

GRANTED, PRESENT, PENDING = range(3)
KEYS = st.lists(st.integers(0, 30), min_size=0, max_size=12)
NAMESPACES = st.integers(0, 1)


class Calls(Protocol):
    """The hot calls of one session, by either way."""

    def lookup(self, ns: int, names: list[bytes]) -> int: ...
    def lease(self, ns: int, names: list[bytes]) -> native.ReadGrant: ...
    def reserve(self, ns: int, names: list[bytes]) -> native.WriteGrant: ...
    def release(self, lease: int) -> None: ...
    def commit(self, lease: int, keep: Any) -> bool: ...
    def abort(self, lease: int) -> None: ...
    def touch(self, ns: int, names: list[bytes]) -> None: ...


class ByStore:
    """Straight into the store."""

    def __init__(self, store: native.Store, session: int) -> None:
        self._store, self._session = store, session

    def lookup(self, ns: int, names: list[bytes]) -> int:
        return self._store.lookup(ns, names)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        return lambda *arguments: call(self._session, *arguments)


class ByRing:
    """Over the session's ring; a posted call is followed by a ping, so that its effect is there."""

    def __init__(self, session: native.Session) -> None:
        self._session = session
        self.lookup, self.lease, self.reserve = session.lookup, session.lease, session.reserve

    def commit(self, lease: int, keep: Any) -> bool:
        return self._session.commit(lease, keep)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._session, name)

        def post(*arguments: Any) -> None:
            call(*arguments)
            self._session.ping()

        return post


@dataclass
class Write:
    session: int
    ns: int
    epoch: int
    numbers: list[int]
    refs: native.SlotRefs


@dataclass
class Read:
    session: int
    ns: int
    refs: native.SlotRefs


@dataclass
class Member:
    group: int
    calls: Calls


@dataclass
class Model:
    """What must be true. A chunk is (namespace, number)."""

    epochs: list[int] = field(default_factory=lambda: [0, 0])
    committed: dict[tuple[int, int], int] = field(default_factory=dict)  # -> slot
    reserved: dict[tuple[int, int], int] = field(default_factory=dict)  # -> write lease
    writes: dict[int, Write] = field(default_factory=dict)
    reads: dict[int, Read] = field(default_factory=dict)
    quarantine: list[tuple[set[int], int]] = field(default_factory=list)  # (sessions it waits for, slots)

    def leading(self, ns: int, numbers: list[int]) -> int:
        for i, number in enumerate(numbers):
            if (ns, number) not in self.committed:
                return i
        return len(numbers)

    def grants(self, ns: int, numbers: list[int]) -> list[int]:
        answers, batch = [], set()
        for number in numbers:
            if (ns, number) in self.committed:
                answers.append(PRESENT)
            elif (ns, number) in self.reserved or number in batch:
                answers.append(PENDING)
            else:
                answers.append(GRANTED)
                batch.add(number)
        return answers

    def forget(self, lease: int) -> Write:
        write = self.writes.pop(lease)
        for number in write.numbers:
            if self.reserved.get((write.ns, number)) == lease:
                del self.reserved[write.ns, number]
        return write


class StoreMachine(RuleBasedStateMachine):
    """Nothing is ever evicted here: 40 chunks at most in an arena of thousands."""

    by_ring = False

    def __init__(self) -> None:
        super().__init__()
        self.host = Host(start=True, lease_ms=10**9)
        self.model = Model()
        self.members: dict[int, Member] = {}
        for ns in range(2):
            assert self.host.store.open_namespace(bytes([ns]) * 16, PAGE) == ns

    def teardown(self) -> None:
        for session in list(self.members):
            self.host.store.close_session(session, True)
        try:
            # A session that ended unproven is now said to be gone.
            for session in range(1, self.host.sessions + 1):
                self.host.store.close_session(session, True)
            stats = self.host.store.stats()
            for name in (
                "read_leases",
                "write_leases",
                "pinned_slots",
                "reserved_slots",
                "quarantined_slots",
                "sessions",
            ):
                assert stats[name] == 0, (name, stats[name])
            assert self.host.store.audit() == []
        finally:
            self.host.close()

    @initialize()
    def first_session(self) -> None:
        self.open_session(0)

    # ---- sessions ----

    @precondition(lambda self: len(self.members) < 4)
    @rule(group=st.integers(0, 1))
    def open_session(self, group: int) -> None:
        if self.by_ring:
            number, session = self.host.attach(group=100 + group)
            calls: Calls = ByRing(session)
        else:
            self.host.sessions += 1
            number = self.host.sessions
            self.host.store.open_session(number, 100 + group, 0, None)
            calls = ByStore(self.host.store, number)
        self.members[number] = Member(100 + group, calls)

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data(), drained=st.booleans())
    def close_session(self, data: st.DataObject, drained: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.members)), "session")
        member = self.members.pop(number)
        self.host.store.close_session(number, drained)
        for lease in [lease for lease, read in self.model.reads.items() if read.session == number]:
            del self.model.reads[lease]
        if drained:
            self._drained(number)
        waits_for = {other for other, m in self.members.items() if m.group == member.group}
        # Of its group, those that ended unproven may still be writing as well.
        waits_for |= {other for other in self.unproven if self.unproven[other] == member.group}
        if not drained:
            waits_for.add(number)
            self.unproven[number] = member.group
        for lease in [lease for lease, write in self.model.writes.items() if write.session == number]:
            slots = len(self.model.forget(lease).numbers)
            if waits_for:
                self.model.quarantine.append((set(waits_for), slots))

    @property
    def unproven(self) -> dict[int, int]:
        return self.__dict__.setdefault("_unproven", {})

    @precondition(lambda self: bool(self.unproven))
    @rule(data=st.data())
    def end_is_proven(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.unproven)), "session")
        self.host.store.close_session(number, True)
        self._drained(number)

    def _drained(self, number: int) -> None:
        self.unproven.pop(number, None)
        for waits_for, _ in self.model.quarantine:
            waits_for.discard(number)
        self.model.quarantine = [entry for entry in self.model.quarantine if entry[0]]

    # ---- the hot calls ----

    def _draw_member(self, data: st.DataObject) -> tuple[int, Calls]:
        number = data.draw(st.sampled_from(sorted(self.members)), "session")
        return number, self.members[number].calls

    @rule(data=st.data(), ns=NAMESPACES, numbers=KEYS)
    def lookup(self, data: st.DataObject, ns: int, numbers: list[int]) -> None:
        _, calls = self._draw_member(data)
        assert calls.lookup(ns, [key(n) for n in numbers]) == self.model.leading(ns, numbers)

    @rule(data=st.data(), ns=NAMESPACES, numbers=KEYS)
    def reserve(self, data: st.DataObject, ns: int, numbers: list[int]) -> None:
        session, calls = self._draw_member(data)
        write = calls.reserve(ns, [key(n) for n in numbers])
        expected = self.model.grants(ns, numbers)
        assert list(write.grants) == expected
        granted = [n for n, grant in zip(numbers, expected, strict=True) if grant == GRANTED]
        assert (write.lease != 0) == bool(granted)
        assert len(write.refs) == len(granted)
        if granted:
            self.model.writes[write.lease] = Write(session, ns, self.model.epochs[ns], granted, write.refs)
            self.model.reserved.update({(ns, n): write.lease for n in granted})

    @precondition(lambda self: bool(self.model.writes))
    @rule(data=st.data(), keep_all=st.booleans())
    def commit(self, data: st.DataObject, keep_all: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.model.writes)), "write lease")
        write = self.model.forget(lease)
        mask = [True] * len(write.numbers)
        if not keep_all:
            mask = data.draw(st.lists(st.booleans(), min_size=len(mask), max_size=len(mask)), "keep")
        keep = None if keep_all else np.array(mask, dtype=np.uint8)
        readable = self.members[write.session].calls.commit(lease, keep)
        assert readable == (write.epoch == self.model.epochs[write.ns])
        if readable:
            for number, slot, kept in zip(write.numbers, write.refs.slots, mask, strict=True):
                if kept:
                    self.model.committed[write.ns, number] = int(slot)

    @precondition(lambda self: bool(self.model.writes))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.model.writes)), "write lease")
        write = self.model.forget(lease)
        self.members[write.session].calls.abort(lease)

    @rule(data=st.data(), ns=NAMESPACES, numbers=KEYS)
    def lease(self, data: st.DataObject, ns: int, numbers: list[int]) -> None:
        session, calls = self._draw_member(data)
        read = calls.lease(ns, [key(n) for n in numbers])
        count = self.model.leading(ns, numbers)
        assert read.count == len(read.refs) == count
        assert (read.lease != 0) == (count > 0)
        assert [int(slot) for slot in read.refs.slots] == [
            self.model.committed[ns, n] for n in numbers[:count]
        ]
        if count:
            self.model.reads[read.lease] = Read(session, ns, read.refs)

    @precondition(lambda self: bool(self.model.reads))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.model.reads)), "read lease")
        read = self.model.reads.pop(lease)
        self.members[read.session].calls.release(lease)

    @rule(data=st.data(), ns=NAMESPACES, numbers=KEYS)
    def touch(self, data: st.DataObject, ns: int, numbers: list[int]) -> None:
        _, calls = self._draw_member(data)
        calls.touch(ns, [key(n) for n in numbers])

    @rule(ns=NAMESPACES)
    def clear(self, ns: int) -> None:
        readable = [chunk for chunk in self.model.committed if chunk[0] == ns]
        assert self.host.store.clear_namespace(ns) == len(readable)
        self.model.epochs[ns] += 1
        for chunk in readable:
            del self.model.committed[chunk]
        for chunk in [chunk for chunk in self.model.reserved if chunk[0] == ns]:
            del self.model.reserved[chunk]

    @rule(lease=st.sampled_from([0, 1 << 40]))
    def unknown_lease(self, lease: int) -> None:
        session = min(self.members)
        with pytest.raises(ValueError, match="is not known"):
            self.host.store.release(session, lease)

    # ---- always ----

    @invariant()
    def counts_agree(self) -> None:
        stats = self.host.store.stats()
        assert stats["sessions"] == len(self.members)
        assert stats["read_leases"] == len(self.model.reads)
        assert stats["write_leases"] == len(self.model.writes)
        assert stats["reserved_slots"] == sum(len(write.numbers) for write in self.model.writes.values())
        assert stats["quarantined_slots"] == sum(slots for _, slots in self.model.quarantine)
        held = {int(slot) for read in self.model.reads.values() for slot in read.refs.slots}
        assert stats["pinned_slots"] == len(held)
        assert stats["evictions"] == 0

    @invariant()
    def audit_is_clean(self) -> None:
        assert self.host.store.audit() == []


class RingMachine(StoreMachine):
    """The same over rings."""

    by_ring = True


TestStore = StoreMachine.TestCase
TestRing = RingMachine.TestCase
TestStore.settings = TestRing.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
