"""Write leases over the losses of their sessions: held, orphaned, late, told once."""

from kvtier.client.values import SlotLease
from kvtier.client.writes import OpenWrites

HERE, ELSEWHERE = b"arena", b"other arena"


def lease(number, attachment=1, boot_id=7):
    return SlotLease(number, boot_id, attachment)


def test_what_ends_in_time_is_nobodys_business():
    writes = OpenWrites()
    assert writes.add(1, 10)
    assert not writes.done(lease(10))
    assert writes.end(1, HERE) == []
    assert writes.take_late(HERE) == []


def test_what_ends_after_its_session_is_told_once():
    writes = OpenWrites()
    assert all(writes.add(1, number) for number in (12, 10, 11))
    assert writes.end(1, HERE) == [10, 11, 12]
    assert writes.take_late(HERE) == []
    assert writes.done(lease(11))
    assert writes.done(lease(12))
    assert not writes.done(lease(12))
    assert writes.take_late(HERE) == [11, 12]
    assert writes.take_late(HERE) == []
    writes.done(lease(10))
    assert writes.take_late(HERE) == [10]


def test_a_grant_that_its_session_did_not_outlive_is_refused():
    writes = OpenWrites()
    assert writes.end(1, HERE) == []
    assert not writes.add(1, 10)
    assert writes.add(2, 11)
    writes.done(lease(10))
    assert writes.take_late(HERE) == []


def test_another_arena_is_told_nothing():
    writes = OpenWrites()
    assert all(writes.add(1, number) for number in (10, 11))
    assert writes.end(1, HERE) == [10, 11]
    writes.done(lease(10))
    assert writes.take_late(ELSEWHERE) == []
    writes.done(lease(11))
    assert writes.take_late(ELSEWHERE) == writes.take_late(HERE) == []


def test_a_lease_of_the_same_number_in_another_session_is_another_lease():
    writes = OpenWrites()
    assert writes.add(1, 10)
    assert writes.end(1, HERE) == [10]
    writes.done(lease(10, attachment=2, boot_id=8))
    assert writes.take_late(HERE) == []
