"""Kinds of KV cache: one compressed vector a token in small blocks; two groups of blocks, one windowed."""

import pytest
from engines import BYTES_PER_TOKEN, CHUNK_TOKENS, tokens

PROMPT_TOKENS = 2600


@pytest.mark.parametrize("kind", ["mla", "sliding"])
def test_new_process_answers_the_same_from_the_arena(host, start, model_of, references, kind):
    model = model_of(kind)
    prompts = [tokens(PROMPT_TOKENS, seed=1), tokens(700, seed=2)]
    prompts.append(prompts[0][:2000] + tokens(500, seed=3))  # leaves the first one's way
    expected = references.tokens(model, prompts)
    first = start(model)
    first.warm_up()
    assert _one_by_one(first, prompts) == expected
    host.settle(first)
    first.close()

    second = start(model)
    second.warm_up()
    assert _one_by_one(second, prompts[:2]) == expected[:2]
    whole = sum(len(prompt) // CHUNK_TOKENS * CHUNK_TOKENS for prompt in prompts[:2])
    assert second.external_hits() == whole
    if kind == "mla":
        assert second.loaded_bytes() >= whole * BYTES_PER_TOKEN[kind]
    else:  # of the layers with a window only its end is loaded
        assert 0 < second.loaded_bytes() < whole * BYTES_PER_TOKEN[kind]
    second.forget()
    assert _one_by_one(second, prompts) == expected
    host.settle(second)


def _one_by_one(engine, prompts):
    # vLLM's answers of an MLA model on CPU depend on what else is in the batch, without any connector too.
    return [engine.generate([prompt])[0] for prompt in prompts]
