"""The SGLang backend's parts that need no SGLang: keys, hits, settings, places of pages, namespaces."""

import hashlib
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from kvtier_connectors.sglang_hicache import keys, settings
from kvtier_connectors.sglang_hicache.fingerprint import model_record, pool_fingerprint
from kvtier_connectors.sglang_hicache.pools import PoolLayout, UnsupportedPool, layout_of


def hash_of(i: int) -> str:
    return hashlib.sha256(bytes([i])).hexdigest()


def test_a_page_hash_is_its_own_key():
    assert [bytes(row).hex() for row in keys.pack([hash_of(1), hash_of(2)])] == [hash_of(1), hash_of(2)]
    assert keys.pack([]).shape == (0, 32)


def test_keys_of_another_form_stay_distinct():
    odd = ["a", "b" * 127, "z" * 64, hash_of(1).upper() + "x"]
    assert len({bytes(row) for row in keys.pack(odd)}) == len(odd)
    # A sum of lengths that fits is not enough.
    assert len(keys.pack(["0" * 63, "0" * 65])) == 2


@pytest.mark.parametrize("window", [1, 2, 3, 9])
def test_ends_of_windows_against_the_plain_definition(window: int):
    draw = np.random.default_rng(window)
    for _ in range(50):
        present = draw.random(draw.integers(0, 20)) < 0.7
        wanted = [all(present[max(0, end - window) : end]) for end in range(1, len(present) + 1)]
        assert keys.ends_of_windows(present, window).tolist() == wanted


def test_leading():
    assert keys.leading(np.array([True, True, False, True])) == 2
    assert keys.leading(np.array([True])) == 1
    assert keys.leading(np.array([], np.bool_)) == 0


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"adress": "unix:/x"}, "unknown key 'adress'"),
        ({"deadline_ms": 0}, "deadline_ms is 0"),
        ({"copy_threads": True}, "copy_threads is True"),
        ({"weights_id": ""}, "weights_id is ''"),
    ],
)
def test_settings_say_what_is_wrong(extra: dict, words: str):
    with pytest.raises(ValueError, match=words):
        settings.parse(extra)


def test_settings_leave_the_frameworks_keys_alone():
    found = settings.parse({"backend_name": "kvtier", "interface_v1": 1, "weights_id": "w"})
    assert found == settings.Settings(weights_id="w")
    assert settings.parse(None) == settings.Settings()


LAYOUT = PoolLayout(
    "kv", ((4096, 64, 64),), 8, 4, 64, {"class": "MHATokenToKVPoolHost", "layout": "page_first"}
)


def test_pages_of_host_indices():
    assert LAYOUT.page_numbers(np.array([8, 9, 10, 11, 0, 1, 2, 3]), 2).tolist() == [2, 0]
    assert LAYOUT.page_numbers(np.array([], np.int64), 0).tolist() == []


@pytest.mark.parametrize(
    "indices", [[1, 2, 3, 4], [0, 1, 2], [0, 1, 3, 2], [32, 33, 34, 35], [-4, -3, -2, -1]]
)
def test_host_indices_that_are_no_pages_of_the_pool_are_refused(indices: list[int]):
    with pytest.raises(ValueError, match="host indices"):
        LAYOUT.page_numbers(np.array(indices), 1)


def test_an_unknown_host_pool_is_refused():
    with pytest.raises(UnsupportedPool, match="'indexer' of class SimpleNamespace is not supported"):
        layout_of("indexer", SimpleNamespace())


@dataclass(frozen=True)
class Config:
    tp_rank: int = 0
    tp_size: int = 2
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False


ARGUMENTS = SimpleNamespace(model_path="/nowhere", kv_cache_dtype="auto", dtype="bfloat16")


def fingerprint(layout=LAYOUT, config=None, weights="w", **more):
    options = {"engine_version": "1", "device": "cpu", "zero_copy": True, **more}
    return pool_fingerprint(layout, config or Config(), model_record(ARGUMENTS, weights), **options)


def test_everything_that_changes_bytes_is_another_namespace():
    def page(**fields):
        return replace(LAYOUT, record={**LAYOUT.record, **fields})

    others = [
        fingerprint(page(layout="layer_first")),
        fingerprint(page(dtype="torch.float16")),
        fingerprint(page(page_tokens=8)),
        fingerprint(page(head_num=4)),
        fingerprint(page(start_layer=8)),
        fingerprint(page(pool="swa")),
        fingerprint(config=Config(tp_rank=1)),
        fingerprint(config=Config(tp_size=4)),
        fingerprint(config=Config(pp_rank=1, pp_size=2)),
        fingerprint(config=Config(attn_cp_rank=1, attn_cp_size=2)),
        fingerprint(weights="other"),
        fingerprint(zero_copy=False),
        fingerprint(engine_version="2"),
    ]
    assert all(other != fingerprint() for other in others)
    assert fingerprint() == fingerprint()


def test_ranks_share_what_is_the_same_on_all_of_them():
    mla = replace(LAYOUT, record={**LAYOUT.record, "class": "MLATokenToKVPoolHost"})
    ranks = [Config(is_mla_model=True, tp_rank=rank) for rank in range(2)]
    assert fingerprint(mla, ranks[0]) == fingerprint(mla, ranks[1])
    with pytest.raises(UnsupportedPool, match="rank 0's pages only"):
        fingerprint(LAYOUT, ranks[0])
