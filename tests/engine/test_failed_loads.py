"""Loads that fail or are not wanted any more: recomputed, given back, never asked for for ever."""

import pytest
from engines import tokens

PROMPT_TOKENS = 4100


@pytest.mark.parametrize("kind", ["dense", "sliding"])
def test_failed_loads_are_recomputed(host, start, model_of, references, kind):
    model = model_of(kind)
    prompt = tokens(PROMPT_TOKENS, seed=1)
    expected = references.tokens(model, [prompt])
    engine = start(model)
    engine.warm_up()
    assert engine.generate([prompt]) == expected
    host.settle(engine)

    for valid_chunks in (0, 3):
        engine.forget()
        # Were it asked for again and again, all of these would be used up.
        engine.call("fail_loads", valid_chunks=valid_chunks, jobs=50)
        before = engine.call("failed_loads")
        assert engine.generate([prompt]) == expected
        assert engine.call("failed_loads") - before == 1
        engine.call("fail_loads", valid_chunks=0, jobs=0)
        host.settle(engine)

    engine.forget()  # the engine and the arena are as good as before
    moved = engine.loaded_bytes()
    assert engine.generate([prompt]) == expected
    assert engine.loaded_bytes() > moved
    host.settle(engine)


def test_abort_in_the_middle_of_a_load(host, start, dense, references):
    prompt, other = tokens(PROMPT_TOKENS, seed=2), tokens(900, seed=3)
    expected = references.tokens(dense, [prompt, other])
    engine = start(dense)
    engine.warm_up()
    assert engine.generate([prompt, other]) == expected
    host.settle(engine)

    engine.forget()
    free = engine.call("free_blocks")
    assert engine.call("abort_while_loading", prompt=prompt) == 1
    assert engine.generate([other]) == expected[1:]
    host.settle(engine)
    host.wait_for(lambda: engine.call("free_blocks") == free, "the aborted request's blocks are free", engine)

    engine.forget()
    assert engine.generate([prompt]) == expected[:1]
    host.settle(engine)
