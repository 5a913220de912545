"""The main job: the same tokens as without kvtier, from bytes that came out of the arena."""

from engines import BYTES_PER_TOKEN, CHUNK_TOKENS, tokens

PROMPT_TOKENS = 4100
WHOLE_CHUNKS_TOKENS = PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS  # what can be reloaded


def test_cold_warm_and_in_a_new_process(host, start, dense, references):
    prompt = tokens(PROMPT_TOKENS, seed=1)
    expected = references.tokens(dense, [prompt])
    first = start(dense)
    first.warm_up()

    assert first.generate([prompt]) == expected  # cold
    assert first.external_hits() == 0
    host.settle(first)
    stored = host.stored_bytes()
    assert stored >= WHOLE_CHUNKS_TOKENS * BYTES_PER_TOKEN["dense"]

    first.forget()
    assert first.generate([prompt]) == expected  # warm: its own cache is empty, the arena's is not
    _assert_reloaded(first)
    assert host.hit_chunks() == WHOLE_CHUNKS_TOKENS // CHUNK_TOKENS
    assert host.stored_bytes() == stored  # nothing was stored twice
    host.settle(first)
    first.close()

    second = start(dense)
    second.warm_up()
    assert second.generate([prompt]) == expected
    _assert_reloaded(second)
    assert host.hit_chunks() == 2 * WHOLE_CHUNKS_TOKENS // CHUNK_TOKENS
    host.settle(second)


def test_two_engines_share_one_daemon_at_once(host, start, dense, references):
    one, other = start(dense, wait=False), start(dense, wait=False)
    for engine in (one, other):
        engine.started()
        engine.warm_up()
    shared = tokens(2048, seed=2)
    prompts = [shared + tokens(300, seed=20 + i) for i in range(6)]
    expected = references.tokens(dense, prompts)

    for round_prompts in (prompts[:3], prompts[3:], prompts):  # storing, half known, all known
        for engine in (one, other):
            engine.forget()
            engine.send("generate", prompts=round_prompts, max_tokens=16)
        wanted = [expected[prompts.index(prompt)] for prompt in round_prompts]
        assert [engine.receive()["tokens"] for engine in (one, other)] == [wanted, wanted]
        host.settle(one, other)
    # In the second and the third round the shared part comes in once, and serves the other prompts from the
    # engine's own cache; in the third each prompt's own chunk comes in too. The first is anyone's.
    reloaded_tokens = 2 * 2048 + len(prompts) * CHUNK_TOKENS
    for engine in (one, other):
        assert engine.external_hits() >= reloaded_tokens
        assert engine.loaded_bytes() >= reloaded_tokens * BYTES_PER_TOKEN["dense"]


def test_reset_and_salt(host, start, dense, references):
    prompt = tokens(PROMPT_TOKENS, seed=3)
    expected = references.tokens(dense, [prompt])
    first = start(dense)
    first.warm_up()
    assert first.generate([prompt], salt="tenant a") == expected
    host.settle(first)

    first.forget()
    assert first.generate([prompt], salt="tenant b") == expected  # a salt changes who may hit, not the answer
    assert first.external_hits() == 0
    host.settle(first)
    first.forget()
    assert first.generate([prompt], salt="tenant a") == expected
    assert first.external_hits() == WHOLE_CHUNKS_TOKENS
    host.settle(first)

    assert host.chunks() > 0
    assert first.call("invalidate")
    host.wait_for(lambda: host.chunks() == 0, "the namespace is empty", first)
    first.close()
    second = start(dense)
    second.warm_up()
    assert second.generate([prompt], salt="tenant a") == expected
    assert second.external_hits() == 0
    assert second.loaded_bytes() == 0
    host.settle(second)


def test_wrong_bytes_in_the_arena_change_the_tokens(host, start, dense, references):
    """The control: if the arena's bytes did not reach the answer, the tests above would prove nothing."""
    prompt = tokens(PROMPT_TOKENS, seed=4)
    expected = references.tokens(dense, [prompt])
    first = start(dense)
    first.warm_up()
    assert first.generate([prompt]) == expected
    host.settle(first)

    assert host.spoil_every_chunk() > 0
    first.forget()
    assert first.generate([prompt]) != expected
    assert first.external_hits() == WHOLE_CHUNKS_TOKENS
    host.settle(first)


def _assert_reloaded(engine):
    assert engine.external_hits() == WHOLE_CHUNKS_TOKENS
    assert engine.loaded_bytes() >= WHOLE_CHUNKS_TOKENS * BYTES_PER_TOKEN["dense"]
