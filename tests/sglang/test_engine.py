"""A real engine: what it computed comes back to another process, from kvtier, as the same tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Host
from sglang_engines import PAGE_TOKENS, Engine, References, tokens

PROMPTS = [tokens(400, seed) for seed in range(4)]
WHOLE_PAGES = 400 // PAGE_TOKENS * PAGE_TOKENS - PAGE_TOKENS  # the last token is always computed

Start = Callable[..., Engine]


@pytest.mark.parametrize("kind", ["dense"])
def test_a_new_process_finds_what_the_last_one_computed(
    host: Host, start: Start, references: References, model_of: Callable[[str], Path], kind: str
) -> None:
    model = model_of(kind)
    wanted = references.answers(model, PROMPTS)

    first = start(model, host.address)
    assert first.generate(PROMPTS).same_as(wanted)
    pages = len(PROMPTS) * (400 // PAGE_TOKENS)
    host.wait_for(lambda: host.chunks() >= pages, f"{pages} pages are stored")
    first.kill()

    second = start(model, host.address)
    found = second.generate(PROMPTS)
    assert found.same_as(wanted)
    assert min(found.from_storage) >= WHOLE_PAGES, found.from_storage
    assert host.hit_chunks() >= len(PROMPTS) * WHOLE_PAGES // PAGE_TOKENS
    # The same once more, after the engine's own caches were emptied.
    second.forget()
    again = second.generate(PROMPTS[:1])
    assert again.tokens == wanted.tokens[:1]
    assert again.from_storage[0] >= WHOLE_PAGES


def test_wrong_bytes_would_show(host: Host, start: Start, model_of: Callable[[str], Path]) -> None:
    engine = start(model_of("dense"), host.address)
    before = engine.generate(PROMPTS[:1])
    host.wait_for(lambda: host.chunks() >= 400 // PAGE_TOKENS, "the prompt is stored")
    engine.forget()
    assert host.spoil_every_chunk() >= 400 // PAGE_TOKENS
    after = engine.generate(PROMPTS[:1])
    assert after.from_storage[0] >= WHOLE_PAGES
    assert not after.same_as(before)
