"""Daemon and engine come and go in any order; nobody waits for a dead one."""

from engines import BYTES_PER_TOKEN, tokens

PROMPT_TOKENS = 2100
WHOLE_CHUNKS_TOKENS = 2048


def test_daemon_absent_then_there_then_killed_then_back(host, start, dense, references):
    prompts = [tokens(PROMPT_TOKENS, seed=1 + i) for i in range(4)]
    expected = references.tokens(dense, prompts)
    host.kill()
    engine = start(dense)
    engine.warm_up()
    assert engine.generate(prompts[:1]) == expected[:1]  # serves without cache
    assert "kvtier" in engine.log_text()  # and says so

    for life in (1, 2):  # comes, is used, is killed, is missed
        host.start()
        host.wait_for(lambda: _attached(host, engine), "the engine attaches by itself", engine)
        engine.forget()
        assert engine.generate([prompts[life]]) == [expected[life]]
        host.settle(engine)
        hits = engine.external_hits()
        engine.forget()
        assert engine.generate([prompts[life]]) == [expected[life]]
        assert engine.external_hits() - hits == WHOLE_CHUNKS_TOKENS
        host.settle(engine)

        host.kill()
        engine.forget()
        hits = engine.external_hits()
        assert engine.generate([prompts[life], prompts[3]]) == [expected[life], expected[3]]
        assert engine.external_hits() == hits
    host.start()


def _attached(host, engine):
    """Both halves of the engine are: the worker, and the scheduler with its namespace."""
    return host.sessions() == 2 and engine.call("metrics")["kvtier_attached"] == 1 and host.has_namespace()


def test_engine_killed_in_the_middle_of_storing(host, start, dense, references):
    prompt = tokens(PROMPT_TOKENS, seed=9)
    expected = references.tokens(dense, [prompt])
    victim = start(dense)
    victim.warm_up()
    assert victim.call("begin_storing", prompt=prompt) > 0
    victim.kill()
    host.wait_for(lambda: host.sessions() == 0, "the daemon sees the engine's end")
    host.assert_nothing_held()

    reader = start(dense)
    reader.warm_up()
    for _ in range(2):  # whatever the victim left, then all that the first round completed
        reader.forget()
        assert reader.generate([prompt]) == expected
        host.settle(reader)
    assert reader.external_hits() >= WHOLE_CHUNKS_TOKENS
    assert reader.loaded_bytes() >= WHOLE_CHUNKS_TOKENS * BYTES_PER_TOKEN["dense"]
