"""Bytes through SGLang's tree, controller and host pools: device, host, kvtier, and back in another stack."""

import pytest
import torch
from harness import Daemon
from inprocess import Case, ComponentType, Stack

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA

CASES = {
    "page_first": Case(),
    "page_first_direct": Case(layout="page_first_direct", io="direct"),
    "layer_first": Case(layout="layer_first"),
    "page_head": Case(layout="page_head"),
    "one page": Case(pages=1),
    "sliding window": Case(components=(FULL, SWA), page_tokens=4, window_tokens=8),
    "recurrent state": Case(components=(FULL, MAMBA), page_tokens=1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_another_stack_gets_the_same_bytes(daemon: Daemon, case: Case) -> None:
    with Stack(case, daemon.address) as first:
        tokens = first.tokens()
        kept = first.store(tokens)
        assert first.backend.counters()["store_pages"] >= case.pages

    with Stack(case, daemon.address) as second:
        assert second.prefetch(tokens) == len(tokens)
        found = second.load_back(tokens)
        counters = second.backend.counters()
    assert len(found) == len(kept)
    assert all(map(torch.equal, kept, found))
    assert counters["load_pages"] >= case.pages
    assert counters["missed_pages"] == 0


def test_pages_that_go_through_python(daemon: Daemon) -> None:
    """Without zero copy SGLang hands over flat pages: the same bytes, in a namespace of their own."""
    case, flat = Case(), {"interface_v1": 0}
    with Stack(case, daemon.address, flat) as first:
        tokens = first.tokens()
        kept = first.store(tokens)
    with Stack(case, daemon.address) as other:
        assert other.prefetch(tokens) == 0
    with Stack(case, daemon.address, flat) as second:
        assert second.prefetch(tokens) == len(tokens)
        found = second.load_back(tokens)
        assert second.backend.counters()["load_pages"] >= case.pages
    assert all(map(torch.equal, kept, found))
