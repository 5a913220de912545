"""One native call answers for a request, and says what key-by-key questions would say."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from kvtier_connectors.vllm_connector.layout import GroupPlan
from kvtier_connectors.vllm_connector.lookup import PROBE_CHUNKS, RequestView, chunk_keys, group_suffix


class Index:
    """An index over a set of keys that counts its calls."""

    def __init__(self, keys=()):
        self.keys = set(keys)
        self.calls = 0

    def lookup_count(self, keys):
        self.calls += 1
        for count, key in enumerate(keys):
            if key not in self.keys:
                return count
        return len(keys)


def plan(group=0, hashes=1, windowed=False):
    return GroupPlan(group, 16, hashes, hashes, 8, 1, windowed)


def hashes(count):
    return [number.to_bytes(32, "big") for number in range(count)]


def offload_keys(p, block_hashes, first=0):
    return [key + group_suffix(p) for key in chunk_keys(p, block_hashes, first)]


def framework_prefix(view, keys):
    """As the framework counts leading hits."""
    count = 0
    for key in keys:
        if not view.present(key):
            break
        count += 1
    return count


def framework_window(view, keys, window):
    """As the framework searches the last run of `window` hits, from the end."""
    run = 0
    for place in range(len(keys) - 1, -1, -1):
        run = run + 1 if view.present(keys[place]) else 0
        if run == window:
            return place + window
    return run


def test_chunk_keys_are_the_last_hash_of_each_whole_chunk():
    blocks = hashes(11)
    assert chunk_keys(plan(hashes=4), blocks) == [blocks[3], blocks[7]]
    assert chunk_keys(plan(hashes=4), blocks, 1) == [blocks[7]]
    assert chunk_keys(plan(hashes=4), blocks[:3]) == []


def test_a_thousand_hits_cost_one_call():
    p, blocks = plan(), hashes(1000)
    index = Index(blocks)
    view = RequestView([p], [index], blocks, 0)
    assert framework_prefix(view, offload_keys(p, blocks)) == 1000
    assert index.calls == 1
    assert (view.chunks_asked, view.chunks_hit) == (1000, 1000)


@given(present=st.sets(st.integers(0, 40)), computed_chunks=st.integers(0, 10))
def test_prefix_answers_are_the_indexs(present, computed_chunks):
    p, blocks = plan(), hashes(40)
    index = Index(blocks[n] for n in present if n < 40)
    view = RequestView([p], [index], blocks, computed_chunks * 16)
    expected = 0
    while computed_chunks + expected < 40 and computed_chunks + expected in present:
        expected += 1
    assert framework_prefix(view, offload_keys(p, blocks, computed_chunks)) == expected
    assert index.calls <= 2


@given(present=st.sets(st.integers(0, 99)), window=st.integers(1, 8))
def test_window_answers_are_the_indexs(present, window):
    p, blocks = plan(windowed=True), hashes(100)
    index = Index(blocks[n] for n in present)
    truth = SimpleNamespace(present=lambda key: key[:-4] in index.keys)
    keys = offload_keys(p, blocks)
    view = RequestView([p], [index], blocks, 0)
    assert framework_window(view, keys, window) == framework_window(truth, keys, window)


def test_a_window_at_the_end_costs_one_call():
    p, blocks = plan(windowed=True), hashes(1000)
    index = Index(blocks)
    view = RequestView([p], [index], blocks, 0)
    assert framework_window(view, offload_keys(p, blocks), PROBE_CHUNKS) == 1000
    assert index.calls == 1


def test_groups_have_indexes_of_their_own():
    plans, blocks = [plan(0), plan(3, windowed=True)], hashes(4)
    view = RequestView(plans, [Index(blocks), Index()], blocks, 0)
    assert view.present(blocks[0] + group_suffix(plans[0]))
    assert not view.present(blocks[0] + group_suffix(plans[1]))
    assert not view.present(blocks[0] + (7).to_bytes(4, "big"))


def test_a_key_between_chunk_boundaries_is_asked_alone():
    for windowed in (False, True):
        p, blocks = plan(hashes=2, windowed=windowed), hashes(6)
        index = Index([blocks[2]])
        view = RequestView([p], [index], blocks, 0)
        assert view.present(blocks[2] + group_suffix(p))
        assert not view.present(blocks[4] + group_suffix(p))
