"""The connector under vllm_torchtpu's name, in vLLM's own engine: whole rows of storages, the same tokens."""

from engines import BYTES_PER_TOKEN, CHUNK_TOKENS, tokens

ALIAS = {
    "kv_connector": "TPURaidenOffloadingConnector",
    "kv_connector_module_path": "kvtier_connectors.vllm_torchtpu",
    "kv_role": "kv_both",
}
PROMPT_TOKENS = 2100
WHOLE_CHUNKS_TOKENS = PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS


def test_the_same_tokens_from_the_arena(host, start, dense, references):
    prompt = tokens(PROMPT_TOKENS, seed=31)
    expected = references.tokens(dense, [prompt])
    engine = start(dense, connector=ALIAS)
    engine.warm_up()
    assert engine.generate([prompt]) == expected
    host.settle(engine)
    engine.forget()
    assert engine.generate([prompt]) == expected
    assert engine.external_hits() >= WHOLE_CHUNKS_TOKENS
    assert engine.loaded_bytes() >= WHOLE_CHUNKS_TOKENS * BYTES_PER_TOKEN["dense"]
    host.settle(engine)
