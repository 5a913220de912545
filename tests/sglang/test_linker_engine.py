"""Real engines without a host tier of their own, linked to kvtier."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts import Host, running_host
from restarts import ASKED, Restarts
from sglang_engines import FOUND_TOKENS, PAGE_TOKENS, PROMPT_PAGES, References

pytestmark = pytest.mark.trial

LINKED = {
    "enable_hierarchical_cache": False,
    "hicache_storage_backend": None,
    "hicache_storage_backend_extra_config": None,
    "enable_unified_cache_external_linker": True,
    "unified_cache_external_linker_backend": "dynamic",
    "unified_cache_external_linker_config": {
        "linker": "KvtierLinker",
        "linker_module_path": "kvtier_connectors.sglang_linker",
        # Engine and daemon have few cores here: who is not scheduled is not hung.
        "linker_extra_config": {"deadline_ms": 5000},
    },
}
ModelOf = Callable[[str], Path]


@pytest.fixture(scope="module")
def restarts(tmp_path_factory: pytest.TempPathFactory, references: References) -> Restarts:
    return Restarts(tmp_path_factory.mktemp("linked"), references)


@pytest.fixture
def linked_host() -> Iterator[Host]:
    with running_host() as started:
        yield started


def test_it_finds_what_another_computed_and_lives_on_without_the_daemon(
    linked_host: Host, restarts: Restarts, model_of: ModelOf
) -> None:
    host, model = linked_host, model_of("dense")
    wanted = restarts.wanted(model)
    with restarts.successor(model, host, LINKED) as engine:
        found = engine.generate(ASKED)
        assert found.same_as(wanted)
        assert min(found.cached) >= FOUND_TOKENS, found.cached
        assert host.hit_chunks() >= len(ASKED) * FOUND_TOKENS // PAGE_TOKENS
        # The device holds two prompts: the first was evicted, and comes back.
        again = engine.generate(ASKED[:1])
        assert again.same_as(wanted)
        assert again.cached[0] >= FOUND_TOKENS
        host.wait_for(lambda: not host.leased(), "all leases are back")

        # Wrong bytes would show.
        engine.forget()
        assert host.spoil_every_chunk() >= PROMPT_PAGES
        assert not engine.generate(ASKED[:1]).same_as(wanted)

        # Without a daemon there are no hits, and no request fails.
        engine.forget()
        host.kill()
        alone = engine.generate(ASKED)
        assert alone.same_as(wanted)
        assert alone.cached[0] == 0


@pytest.mark.parametrize(("kind", "ranks"), [("mla", 1), ("dense", 2)])
def test_mla_and_two_ranks(
    linked_host: Host, restarts: Restarts, model_of: ModelOf, kind: str, ranks: int
) -> None:
    model = model_of(kind)
    with restarts.successor(model, linked_host, LINKED, ranks) as engine:
        found = engine.generate(ASKED)
        assert found.same_as(restarts.wanted(model))
        assert min(found.cached) >= FOUND_TOKENS, found.cached
