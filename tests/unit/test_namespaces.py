import asyncio

import pytest

from kvtier.client.namespace import Namespace
from kvtier.clock import ManualClock
from kvtier.daemon import namespaces
from kvtier.daemon.namespaces import Namespaces
from kvtier.errors import (
    FingerprintMismatch,
    LimitReached,
    NamespaceMismatch,
    StorageUnavailable,
    UnknownNamespace,
)
from kvtier.format.fingerprint import canonical_json, namespace_id
from kvtier.types import UNCONFIRMED_CLEAR


class Counting:
    """The part of a store that namespaces use."""

    def __init__(self, earlier=(), rows_max=1024, chunks=2):
        self.opened = list(earlier)
        self.rows_max = rows_max
        self.chunks = chunks
        self.epoch = 0
        self.withheld = []
        self.waits_s = []
        self.cleared = []

    def epoch_below(self, index):
        return self.epoch

    def set_epoch_below(self, index, word):
        self.epoch = word

    def clear_namespace(self, index):
        self.cleared.append(index)
        self.epoch |= UNCONFIRMED_CLEAR
        return 2

    def withhold_namespace(self, index):
        self.withheld.append(index)

    def await_settled(self, index, wait_s):
        self.waits_s.append(wait_s)
        return False

    def open_namespace(self, id, chunk_bytes):
        if (id, chunk_bytes) not in self.opened:
            if len(self.opened) < self.rows_max:
                self.opened.append((id, chunk_bytes))
            elif self.chunks:
                raise ValueError(f"no more than namespaces_max = {self.rows_max} namespaces")
            else:
                self.opened[0] = (id, chunk_bytes)
        return self.opened.index((id, chunk_bytes))

    def namespaces(self):
        counts = {"epoch": 3, "chunks": self.chunks, "bytes": 8192, "hits": 1}
        return [
            {"index": index, "id": id, "chunk_bytes": chunk_bytes} | counts
            for index, (id, chunk_bytes) in enumerate(self.opened)
        ]


class Below:
    """The part of a storage tier that namespaces use."""

    on = True

    def __init__(self, made=0):
        self.made = made

    def open_namespace(self, index, id, chunk_bytes, fingerprint_json, told):
        self.told = told

    def clear_namespace(self, index):
        pass

    def clear_unopened(self, id):
        if isinstance(self.made, str):
            raise ValueError(self.made)
        if callable(self.made):
            return self.made()
        return self.made

    def namespaces(self):
        return {}


def text(name):
    return canonical_json({"model": name})


def test_two_fingerprints_under_one_id_are_refused_loudly():
    known = Namespaces(Counting(), boot_id=1, id_of=lambda _: b"i" * 16)
    known.open(text("a"), 4096)
    with pytest.raises(FingerprintMismatch, match=r'another fingerprint: \{"model":"a"\}'):
        known.open(text("b"), 4096)
    assert known.open(text("a"), 4096).fingerprint_json == text("a")


def test_the_store_is_asked_once_and_counts_are_its():
    store = Counting()
    known = Namespaces(store, boot_id=7)
    first = known.open(text("a"), 4096)
    with pytest.raises(NamespaceMismatch):
        known.open(text("a"), 8192)
    assert known.open(text("a"), 4096) == first
    assert len(store.opened) == 1
    assert (first.boot_id, first.epoch, first.chunks, first.bytes, first.hits, first.misses) == (
        7,
        3,
        2,
        8192,
        1,
        0,
    )


def test_what_an_earlier_daemon_left_is_known_by_its_id_alone():
    id = namespace_id(text("a"))
    known = Namespaces(Counting(earlier=[(id, 4096)]), boot_id=1)
    assert known.index(id) == 0
    (listed,) = known.list()
    assert (listed.id, listed.chunks, listed.fingerprint_json, listed.label) == (
        id,
        2,
        "{}",
        "(of an earlier daemon)",
    )
    with pytest.raises(NamespaceMismatch, match=r"chunk_bytes is 8192; namespace .* is known with 4096"):
        known.open(text("a"), 8192)
    opened = known.open(text("a"), 4096, label="mine")
    assert [info.label for info in known.list()] == ["mine"]
    assert opened.fingerprint_json == text("a")


EARLIER = [(namespace_id(text("a")), 4096)]


@pytest.mark.parametrize(("left", "remembered", "told"), [(3, 3, 3), (3, 2, 3)])
def test_an_arena_that_outlives_its_daemon_goes_on_in_its_epoch(left, remembered, told):
    store, below = Counting(EARLIER), Below()
    store.epoch = left
    known = Namespaces(store, boot_id=2, storage=below)
    id = known.open(text("a"), 4096, epoch_below=remembered).id
    assert below.told == told
    assert known.contradicts(id, remembered) == (remembered != told)
    assert (store.withheld, store.cleared) == ([], [])


@pytest.mark.parametrize("left", [3, 0])
def test_an_engine_that_remembers_nothing_is_of_the_highest_epoch_and_the_arena_is_asked_about(left):
    store, below = Counting(EARLIER), Below()
    store.epoch = left
    known = Namespaces(store, boot_id=2, storage=below)
    known.open(text("a"), 4096)
    assert (below.told, store.withheld, store.cleared) == (0, [0], [])
    known.open(text("b"), 4096)  # a new one, of which nothing is in the arena
    assert (below.told, store.withheld, store.cleared) == (0, [0], [])


def test_what_is_of_no_known_epoch_is_not_for_an_engine_that_remembers_one():
    """An engine that started anew stored it while the root hung; this one did not see that daemon."""
    store, below = Counting(EARLIER), Below()
    known = Namespaces(store, boot_id=3, storage=below)
    id = known.open(text("a"), 4096, epoch_below=2).id
    assert (below.told, store.withheld, store.cleared) == (UNCONFIRMED_CLEAR, [], [0])
    assert not known.contradicts(id, 2)


def test_nobody_waits_long_for_a_root_that_does_not_answer():
    store, clock = Counting(EARLIER), ManualClock()
    known = Namespaces(store, boot_id=2, storage=Below(), clock=clock)
    id = known.open(text("a"), 4096).id
    asyncio.run(known.settle(id))
    clock.advance(0.75 * namespaces.SETTLE_S)
    known.open(text("a"), 4096)
    asyncio.run(known.settle(id))
    clock.advance(namespaces.SETTLE_S)
    asyncio.run(known.settle(id))
    assert store.waits_s == [namespaces.SETTLE_S, pytest.approx(0.25 * namespaces.SETTLE_S)]


def test_what_an_unconfirmed_clear_left_is_not_for_an_engine_that_remembers_nothing():
    store, below = Counting(EARLIER), Below()
    store.epoch = UNCONFIRMED_CLEAR | 3
    known = Namespaces(store, boot_id=2, storage=below)
    id = known.open(text("a"), 4096).id
    assert (below.told, store.withheld, store.cleared) == (UNCONFIRMED_CLEAR, [], [0])
    assert not known.contradicts(id, UNCONFIRMED_CLEAR | 3)


def test_without_storage_an_arena_is_served_to_whoever_opens_it():
    store = Counting(EARLIER)
    store.epoch = 3
    known = Namespaces(store, boot_id=2)
    known.open(text("a"), 4096)
    assert (store.withheld, store.cleared) == ([], [])


def test_two_engines_that_remember_one_unconfirmed_clear_agree():
    """It is made up for when the first of them opens the namespace."""
    store = Counting(EARLIER)
    store.epoch = UNCONFIRMED_CLEAR | 3
    known = Namespaces(store, boot_id=2, storage=Below())
    id = known.open(text("a"), 4096, epoch_below=UNCONFIRMED_CLEAR | 3).id
    assert not known.contradicts(id, UNCONFIRMED_CLEAR | 3)
    store.epoch = 5
    known.open(text("a"), 4096, epoch_below=UNCONFIRMED_CLEAR | 3)
    assert not known.contradicts(id, UNCONFIRMED_CLEAR | 3)
    assert known.contradicts(id, 3)


def test_their_number_is_bounded():
    known = Namespaces(Counting(rows_max=2), boot_id=1)
    known.open(text("a"), 4096)
    known.open(text("b"), 4096)
    with pytest.raises(LimitReached, match="2 namespaces are open and 0 are an earlier daemon's"):
        known.open(text("c"), 4096)
    assert known.open(text("a"), 4096).index == 0


def test_those_of_an_earlier_daemon_count_too():
    earlier = [(namespace_id(text(name)), 4096) for name in "ab"]
    known = Namespaces(Counting(earlier, rows_max=2), boot_id=1)
    assert known.open(text("b"), 4096).index == 1
    with pytest.raises(
        LimitReached, match="1 namespaces are open and 1 are an earlier daemon's, with chunks"
    ):
        known.open(text("c"), 4096)


def test_one_of_an_earlier_daemon_that_has_no_chunks_makes_way():
    earlier = [(namespace_id(text(name)), 4096) for name in "ab"]
    known = Namespaces(Counting(earlier, rows_max=2, chunks=0), boot_id=1)
    assert known.open(text("c"), 4096).index == 0
    with pytest.raises(UnknownNamespace):
        known.index(namespace_id(text("a")))
    assert known.index(namespace_id(text("b"))) == 1


# ---- what a daemon without storage keeps in mind for one that has it ----


@pytest.mark.parametrize(
    ("left", "remembered", "kept"),
    [
        (None, 4, 4),  # an empty arena: of the epoch of who opens it first
        (None, UNCONFIRMED_CLEAR | 4, UNCONFIRMED_CLEAR | 4),
        (None, 0, 0),
        (3, 4, 3),  # of the arena's
        (3, UNCONFIRMED_CLEAR | 4, UNCONFIRMED_CLEAR | 3),
        (0, 4, 0),
    ],
)
def test_an_epoch_and_an_unconfirmed_clear_outlive_a_daemon_without_storage(left, remembered, kept):
    store = Counting([] if left is None else EARLIER)
    store.epoch = left or 0
    Namespaces(store, boot_id=2).open(text("a"), 4096, epoch_below=remembered)
    assert (store.epoch, store.cleared, store.withheld) == (kept, [], [])


def test_the_second_engine_may_be_the_one_that_knows_of_an_unconfirmed_clear():
    store = Counting()
    known = Namespaces(store, boot_id=2)
    known.open(text("a"), 4096)
    id = known.open(text("a"), 4096, epoch_below=UNCONFIRMED_CLEAR | 4).id
    assert (store.epoch, known.contradicts(id, UNCONFIRMED_CLEAR | 4)) == (UNCONFIRMED_CLEAR, False)


# ---- clearing what no engine has opened ----

ID = namespace_id(text("a"))


def test_an_earlier_daemons_namespace_is_cleared_in_memory_and_on_storage():
    store = Counting(EARLIER)
    known = Namespaces(store, boot_id=2, storage=Below(made=6))
    assert asyncio.run(known.clear(ID)) == 2
    assert (store.cleared, store.epoch) == ([0], 7)  # whoever opens it is of epoch 6


def test_one_that_lies_on_storage_alone_is_cleared_there():
    store = Counting()
    assert asyncio.run(Namespaces(store, boot_id=2, storage=Below(made=6)).clear(ID)) == 0
    assert store.cleared == []
    with pytest.raises(UnknownNamespace, match="neither to this daemon nor to its storage"):
        asyncio.run(Namespaces(store, boot_id=2, storage=Below(made=0)).clear(ID))


@pytest.mark.parametrize(
    ("earlier", "said"), [(EARLIER, "2 chunks.*it will be when"), ([], "0 chunks.*try again")]
)
def test_a_root_that_refuses_is_named(earlier, said):
    store = Counting(earlier)
    known = Namespaces(store, boot_id=2, storage=Below(made="it hangs"))
    with pytest.raises(StorageUnavailable, match=said):
        asyncio.run(known.clear(ID))
    assert store.epoch == (UNCONFIRMED_CLEAR if earlier else 0)  # so whoever opens it makes up for it


def test_one_that_is_opened_while_the_root_is_asked_is_cleared_once_more():
    store, below = Counting(), Below()
    known = Namespaces(store, boot_id=2, storage=below)

    def opened():
        known.open(text("a"), 4096)
        return 6

    below.made = opened
    assert asyncio.run(known.clear(ID)) == 2
    assert store.cleared == [0]


def test_without_storage_what_is_in_the_arena_is_cleared():
    store = Counting(EARLIER)
    assert asyncio.run(Namespaces(store, boot_id=2).clear(ID)) == 2
    assert store.cleared == [0]


def test_who_remembers_another_epoch_than_who_came_first():
    store = Counting()
    known = Namespaces(store, boot_id=1, storage=Below())
    id = known.open(text("a"), 4096).id
    store.epoch = 3
    assert not known.contradicts(id, 0)
    assert not known.contradicts(id, 3)
    assert known.contradicts(id, 2)
    asyncio.run(known.clear(id))  # whatever it was, it is of nobody's old weights now
    assert not known.contradicts(id, 2)
    below = Below()
    Namespaces(Counting(), boot_id=1, storage=below).open(text("a"), 4096, epoch_below=2)
    assert below.told == 2
    without = Namespaces(Counting(), boot_id=1)
    assert not without.contradicts(without.open(text("a"), 4096).id, 2)


def test_what_a_process_remembers_for_the_next_daemon():
    ns = Namespace(None, b"i" * 16, text("a"), 4096)
    for left, remembered in [
        (0, 0),
        (5, 5),
        (0, 5),  # a daemon without storage
        (UNCONFIRMED_CLEAR, UNCONFIRMED_CLEAR | 5),  # which was told to clear
        (0, UNCONFIRMED_CLEAR | 5),
        (6, 6),  # storage has confirmed it
        (UNCONFIRMED_CLEAR | 6, UNCONFIRMED_CLEAR | 6),
    ]:
        ns.remember(left)
        assert ns.epoch_below == remembered
