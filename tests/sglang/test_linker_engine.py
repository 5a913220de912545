"""A real engine without a host tier of its own, linked to kvtier."""

from collections.abc import Callable
from pathlib import Path

from hosts import Host
from sglang_engines import PAGE_TOKENS, Answers, Engine, References, tokens

PROMPTS = [tokens(400, seed) for seed in range(4)]
PAGES = 400 // PAGE_TOKENS
WHOLE_PAGES = PAGES * PAGE_TOKENS - PAGE_TOKENS  # the last token is always computed
LINKED = {
    "enable_hierarchical_cache": False,
    "hicache_storage_backend": None,
    "hicache_storage_backend_extra_config": None,
    "enable_unified_cache_external_linker": True,
    "unified_cache_external_linker_backend": "dynamic",
    "unified_cache_external_linker_config": {
        "linker": "KvtierLinker",
        "linker_module_path": "kvtier_connectors.sglang_linker",
        # Both processes have few cores here: who is not scheduled is not hung.
        "linker_extra_config": {"deadline_ms": 5000},
    },
}


def first_of(answers: Answers) -> Answers:
    """Of the first prompt alone."""
    return Answers(answers.tokens[:1], answers.logprobs[:1], answers.cached[:1], answers.from_storage[:1])


def test_a_linked_engine_finds_what_another_computed_and_lives_on_without_the_daemon(
    host: Host, start: Callable[..., Engine], references: References, model_of: Callable[[str], Path]
) -> None:
    model = model_of("dense")
    wanted = references.answers(model, PROMPTS)

    first = start(model, host.address, engine=LINKED)
    assert first.generate(PROMPTS).same_as(wanted)
    host.wait_for(lambda: host.chunks() >= len(PROMPTS) * PAGES, "all prompts are stored")
    # Four prompts do not fit the device: the first ones have been evicted, and come back.
    again = first.generate(PROMPTS[:1])
    assert again.same_as(first_of(wanted))
    assert again.cached[0] >= WHOLE_PAGES
    first.kill()

    second = start(model, host.address, engine=LINKED)
    found = second.generate(PROMPTS)
    assert found.same_as(wanted)
    assert min(found.cached) >= WHOLE_PAGES, found.cached
    assert host.hit_chunks() >= len(PROMPTS) * WHOLE_PAGES // PAGE_TOKENS
    host.wait_for(lambda: not host.leased(), "all leases are back")

    # Wrong bytes would show.
    second.forget()
    assert host.spoil_every_chunk() >= PAGES
    assert not second.generate(PROMPTS[:1]).same_as(first_of(wanted))

    # Without a daemon there are no hits, and no request fails.
    second.forget()
    host.kill()
    alone = second.generate(PROMPTS)
    assert alone.same_as(wanted)
    assert alone.cached[0] == 0
