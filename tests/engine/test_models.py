"""A hybrid of two groups of blocks, one windowed. The compressed vectors of MLA: test_mla.py."""

from engines import BYTES_PER_TOKEN, CHUNK_TOKENS, tokens

PROMPT_TOKENS = 2600


def test_new_process_answers_the_same_from_the_arena(host, start, model_of, references):
    model = model_of("sliding")
    prompts = [tokens(PROMPT_TOKENS, seed=1), tokens(700, seed=2)]
    prompts.append(prompts[0][:2000] + tokens(500, seed=3))  # leaves the first one's way
    expected = references.tokens(model, prompts)
    first = start(model)
    first.warm_up()
    assert first.generate(prompts) == expected
    host.settle(first)
    first.close()

    second = start(model)
    second.warm_up()
    assert second.generate(prompts[:2]) == expected[:2]
    whole = sum(len(prompt) // CHUNK_TOKENS * CHUNK_TOKENS for prompt in prompts[:2])
    assert second.external_hits() == whole
    # Of the layers with a window only its end is loaded.
    assert 0 < second.loaded_bytes() < whole * BYTES_PER_TOKEN["sliding"]
    second.forget()
    assert second.generate(prompts) == expected
    host.settle(second)
