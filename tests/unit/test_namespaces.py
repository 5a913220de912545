import pytest

from kvtier.daemon import namespaces
from kvtier.daemon.namespaces import Namespaces
from kvtier.errors import FingerprintMismatch, LimitReached, NamespaceMismatch
from kvtier.format.fingerprint import canonical_json


class Counting:
    """The part of a store that namespaces use."""

    def __init__(self):
        self.opened = []

    def open_namespace(self, id, chunk_bytes):
        self.opened.append((id, chunk_bytes))
        return len(self.opened) - 1

    def namespaces(self):
        return [{"index": 0, "epoch": 3, "chunks": 2, "bytes": 8192, "hits": 1}]


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


def test_their_number_is_bounded(monkeypatch):
    monkeypatch.setattr(namespaces, "NAMESPACES_MAX", 2)
    known = Namespaces(Counting(), boot_id=1)
    known.open(text("a"), 4096)
    known.open(text("b"), 4096)
    with pytest.raises(LimitReached, match="2 namespaces are open"):
        known.open(text("c"), 4096)
    assert known.open(text("a"), 4096).index == 0
