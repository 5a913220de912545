"""A real engine whose host pool only passes pages on: kvtier is all the memory beside the device."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import running_host
from restarts import ASKED, Restarts
from sglang_engines import FOUND_TOKENS, References

pytestmark = pytest.mark.trial


def test_pages_come_back_through_a_pool_that_keeps_none(
    tmp_path: Path, references: References, model_of: Callable[[str], Path]
) -> None:
    restarts, model = Restarts(tmp_path, references), model_of("dense")
    passing = {"hicache_host_memory_mode": "buffer_only"}
    with running_host() as host, restarts.successor(model, host, passing) as engine:
        found = engine.generate(ASKED)
        assert found.same_as(restarts.wanted(model))
        assert min(found.from_storage) >= FOUND_TOKENS, found.from_storage
