"""MLA keeps one compressed vector a token. On CPU one of vLLM's two backends can go on from a given prefix.

The reference backend (float32, any CPU) computes a prompt's own tokens without what came before them, so vLLM
switches prefix caching off for it; kvtier must not hand it a prefix. The other one (AMX, bfloat16) can. Its
answers depend on how a prompt is split into steps, so the oracle there is the engine's own prefix cache: the
same tokens held, the same tokens computed.
"""

from pathlib import Path

import pytest
from engines import CHUNK_TOKENS, Model, tokens

HAS_AMX = "amx_tile" in Path("/proc/cpuinfo").read_text()
BYTES_PER_TOKEN = 3 * 576 * 2  # layers, compressed vector, bfloat16
HELD_TOKENS = 2 * CHUNK_TOKENS


def test_a_backend_that_cannot_continue_a_prefix_gets_none(host, start, model_of, references):
    model = model_of("mla")
    prompts = [tokens(2600, seed=1), tokens(700, seed=2)]
    expected = references.tokens(model, prompts)
    engine = start(model)
    for _ in range(2):
        assert [engine.generate([prompt])[0] for prompt in prompts] == expected
        engine.forget()
    host.settle(engine)
    assert engine.external_hits() == 0
    assert host.chunks() == 0
    assert "cannot continue a prefix" in engine.log_text()


@pytest.mark.skipif(not HAS_AMX, reason="vLLM's other MLA backend for CPUs needs AMX")
def test_new_process_answers_as_from_the_engines_own_cache(host, start, model_of):
    model = Model("mla", model_of("mla").path, 128, {"dtype": "bfloat16"})
    prompts = [tokens(HELD_TOKENS + rest, seed=rest) for rest in (1, 30, 100)]  # less than a block of 128
    first = start(model)
    first.warm_up()
    expected = []
    for prompt in prompts:
        first.generate([prompt])
        expected.append(first.generate([prompt])[0])  # from its own cache: HELD_TOKENS of it
    assert first.external_hits() == 0
    host.settle(first)
    first.close()

    second = start(model)
    second.warm_up()
    assert [second.generate([prompt])[0] for prompt in prompts] == expected
    assert second.external_hits() == len(prompts) * HELD_TOKENS
    assert second.loaded_bytes() == len(prompts) * HELD_TOKENS * BYTES_PER_TOKEN
    host.settle(second)
