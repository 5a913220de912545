"""The SGLang linker's parts that need no SGLang: promises' bounds, results' order, pauses, refusals."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from harness import Daemon, bytes_of, until
from kvtier_connectors.sglang_hicache.copier import Copier
from kvtier_connectors.sglang_hicache.keys import pack
from kvtier_connectors.sglang_hicache.pools import UnsupportedPool
from kvtier_connectors.sglang_hicache.tally import Tally
from kvtier_connectors.sglang_linker import promises
from kvtier_connectors.sglang_linker.breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker
from kvtier_connectors.sglang_linker.device_pool import device_pool, pool_of
from kvtier_connectors.sglang_linker.offloads import Offload, Offloads
from kvtier_connectors.sglang_linker.settings import LinkerSettings, parse

KEYS = [f"{i:064x}" for i in range(4)]
CHUNK = 4096


def test_pauses_grow_to_a_bound_and_end_with_a_load_that_lands():
    now_s = [100.0]
    breaker = Breaker(lambda: now_s[0])
    assert not breaker.open
    pauses = []
    for _ in range(9):
        breaker.failed()
        began_s = now_s[0]
        while breaker.open:
            now_s[0] += 0.5
        pauses.append(now_s[0] - began_s)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    breaker.landed()
    breaker.failed()
    now_s[0] += FIRST_PAUSE_S
    assert not breaker.open


class SlowShelf:
    """Has everything but the first page, whose storing takes as long as the test says."""

    namespace = SimpleNamespace(attached=True)
    tally = Tally()

    def __init__(self):
        self.may_end, self.begun = threading.Event(), threading.Event()

    def present(self, keys):
        return np.array([bytes(key) != bytes.fromhex(KEYS[0]) for key in keys])

    def set(self, keys, _indices):
        self.begun.set()
        assert self.may_end.wait(30)
        return np.ones(len(keys), np.bool_)


def test_results_come_in_the_order_of_the_offloads():
    shelf = SlowShelf()
    offloads = Offloads(shelf)
    offloads.give(Offload(KEYS[:1], None))
    assert shelf.begun.wait(30)
    offloads.give(Offload(KEYS[1:2], None))  # there already: known at once, but not fetched before the first
    assert offloads.ended() == 0
    shelf.may_end.set()
    until(lambda: offloads.ended() == 2, "both have ended")
    assert [offloads.pop(), offloads.pop()] == [True, True]
    offloads.close()


def test_an_offload_that_fails_is_reported_and_the_next_one_served():
    shelf = SlowShelf()
    shelf.may_end.set()
    offloads = Offloads(shelf)
    bad = SimpleNamespace(synchronize=lambda: 1 / 0)
    offloads.give(Offload(KEYS[:1], None, [bad]))
    offloads.give(Offload(KEYS[:1], None))
    until(lambda: offloads.ended() == 2, "both have ended")
    assert [offloads.pop(), offloads.pop()] == [False, True]
    offloads.close()


def test_promises_hold_a_bounded_number_of_requests(daemon: Daemon, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(promises, "HELD_MAX", 3)
    with daemon.client() as client:
        namespace = client.namespace({"linker": "test"}, CHUNK)
        with namespace.reserve([bytes(key) for key in pack(KEYS)]) as write:
            for key, view in zip(write.keys, write.views, strict=True):
                view[:] = bytes_of(key, CHUNK)
            write.commit()
        copier = Copier(client, threads=1, load_deadline_ms=1000)
        made = promises.Promises(namespace, copier, Tally(), wait_s=0)
        for i in range(8):
            assert made.make(f"request {i}", KEYS) == len(KEYS)
        assert len(made) == 3
        until(lambda: sum(s.read_leases for s in daemon.stats().sessions) == 3, "the others are back")
        # The oldest are gone; a prefix of what was promised is kept, anything else is not.
        assert made.take("request 0", KEYS) is None
        lease = made.take("request 7", KEYS[:2])
        assert lease is not None
        assert len(lease) == len(KEYS)
        assert made.take("request 6", KEYS[1:]) is None
        namespace.release_slots(lease)
        made.drop_all()
        copier.close()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"lookup_wait_ms": -1}, "linker_extra_config .*: lookup_wait_ms is -1"),
        ({"interface_v1": 1}, "unknown key 'interface_v1'"),
        ({"deadline_ms": 0}, "linker_extra_config .*: deadline_ms is 0"),
    ],
)
def test_settings_say_what_is_wrong(extra: dict, words: str):
    with pytest.raises(ValueError, match=words):
        parse(extra)
    assert parse({"weights_id": "w"}) == LinkerSettings(weights_id="w")


def parameters(**more):
    return SimpleNamespace(mtp_draft_device_pools=(), sidecar_draft_device_pools=(), page_size=4, **more)


def test_what_is_not_whole_is_refused():
    full, swa = SimpleNamespace(name="FULL"), SimpleNamespace(name="SWA")
    with pytest.raises(UnsupportedPool, match="models with SWA beside full attention"):
        device_pool(parameters(), [full, swa])
    drafts = SimpleNamespace(**{**vars(parameters()), "sidecar_draft_device_pools": (object(),)})
    with pytest.raises(UnsupportedPool, match="draft model"):
        device_pool(drafts, [full])
    with pytest.raises(UnsupportedPool, match="KV pool of class SimpleNamespace is not supported"):
        pool_of(SimpleNamespace(), 4)


class MHATokenToKVPool:
    """A stand-in by name."""

    def __init__(self, **fields):
        self.__dict__.update({"k_buffer": [], "v_buffer": [], **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"k_scale_buffer": []}, "scales"), ({"kv_cache_layout": "hnd"}, "layout 'hnd'")],
)
def test_pools_with_another_inside_are_refused(fields: dict, words: str):
    with pytest.raises(UnsupportedPool, match=words):
        pool_of(MHATokenToKVPool(**fields), 4)
