import pytest

from kvtier.clock import ManualClock
from kvtier.daemon.floors import FloorKeeper
from kvtier.errors import InvalidArgument
from kvtier.floors import Floors

ROOM = 10


class FakeStore:
    """Floors that fit into ROOM, and counts that a test moves."""

    def __init__(self, *floors):
        self.rows = [
            {"index": i, "id": bytes([i]) * 16, "hits": 0, "misses": 0, "stores": 0, "floor": floor}
            for i, floor in enumerate(floors)
        ]

    def namespaces(self):
        return [dict(row) for row in self.rows]

    def set_floor(self, index, floor):
        if floor and sum(row["floor"] for row in self.rows if row["index"] != index) + floor > ROOM:
            raise ValueError("does not fit")
        self.rows[index]["floor"] = floor

    @property
    def floors(self):
        return [row["floor"] for row in self.rows]


def made(*floors, idle_s=100.0, named=None):
    store, clock = FakeStore(*floors), ManualClock()
    return store, clock, FloorKeeper(store, Floors(0, named or {"m": 6}), clock, idle_s)


def test_an_unused_floor_lapses_and_comes_back_with_a_use():
    store, clock, keeper = made(0)
    keeper.open(bytes(16), 0, "m")
    assert store.floors == [6]
    clock.advance(99)
    keeper.look()
    assert store.floors == [6]
    clock.advance(1)
    keeper.look()
    assert store.floors == [0]
    store.rows[0]["misses"] += 1
    keeper.look()
    assert store.floors == [6]


@pytest.mark.parametrize("count", ["hits", "misses", "stores"])
def test_whatever_is_used_keeps_its_floor(count):
    store, clock, keeper = made(0)
    keeper.open(bytes(16), 0, "m")
    for _ in range(10):
        clock.advance(90)
        store.rows[0][count] += 1
        keeper.look()
        assert store.floors == [6]


def test_a_successor_has_its_floor_when_the_former_one_has_lapsed():
    store, clock, keeper = made(0, 0)
    keeper.open(bytes(16), 0, "m")
    clock.advance(50)
    keeper.open(bytes(16), 1, "m")
    assert store.floors == [6, 0]
    clock.advance(50)
    store.rows[1]["stores"] += 1
    keeper.look()
    assert store.floors == [0, 6]  # in one look
    store.rows[0]["hits"] += 1  # the former one comes back: it does not fit now
    keeper.look()
    assert store.floors == [0, 6]


def test_zero_never_lapses():
    store, clock, keeper = made(0, idle_s=0.0)
    keeper.open(bytes(16), 0, "m")
    clock.advance(1e9)
    keeper.look()
    assert store.floors == [6]


def test_what_an_earlier_daemon_said_holds_until_the_namespace_is_opened_or_nobody_comes():
    store, clock, keeper = made(3, 4)
    keeper.look()
    assert store.floors == [3, 4]
    keeper.open(bytes(16), 0, "other")
    assert store.floors == [0, 4]
    clock.advance(100)
    keeper.look()
    assert store.floors == [0, 0]


def test_an_operators_floor_is_not_overridden_by_a_name_that_comes_later():
    store, _, keeper = made(0, 3)
    keeper.open(bytes(16), 0, "")
    keeper.set(0, 2)
    keeper.open(bytes(16), 0, "m")
    assert store.floors == [2, 3]
    keeper.set(1, 4)  # of an earlier daemon's, before an engine opens it
    keeper.open(bytes([1]) * 16, 1, "other")
    keeper.look()
    assert store.floors == [2, 4]
    keeper.set(0, 0)
    keeper.open(bytes(16), 0, "m")
    assert store.floors == [0, 4]
    store.rows[0]["id"] = b"i" * 16  # another namespace has the row now
    keeper.open(b"i" * 16, 0, "m")
    assert store.floors == [6, 4]


def test_an_operators_floor_stays_until_it_lapses_and_comes_back():
    store, clock, keeper = made(0)
    keeper.open(bytes(16), 0, "m")
    keeper.set(0, 9)
    keeper.look()
    assert store.floors == [9]
    with pytest.raises(InvalidArgument, match="does not fit"):
        keeper.set(0, 11)
    clock.advance(100)
    keeper.look()
    store.rows[0]["hits"] += 1
    keeper.look()
    assert store.floors == [9]
