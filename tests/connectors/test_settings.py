"""The user's configuration: defaults, and one clear message for what cannot be."""

import pytest
from kvtier_connectors.vllm_connector import settings


def test_nothing_is_needed():
    own = settings.parse({})
    assert own == settings.Settings()
    assert own.load_failure_policy == "recompute"


def test_injection_is_accepted_when_read_again_and_keeps_the_users_wish():
    extra = {"address": "unix:/run/k.sock", "offload_prompt_only": True}
    settings.inject(extra)
    assert extra["spec_name"] == "KVTierSpec"
    assert extra["offload_prompt_only"] is True
    assert settings.parse(extra).address == "unix:/run/k.sock"


def test_answers_are_stored_unless_told_otherwise():
    extra = {}
    settings.inject(extra)
    assert extra["offload_prompt_only"] is False


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ({"adress": "unix:/x"}, ["adress", "unix:/x", "address"]),
        ({"chunk_tokens": 0}, ["chunk_tokens", "0", ">= 1"]),
        ({"chunk_tokens": "256"}, ["chunk_tokens", "'256'", "integer"]),
        ({"chunk_tokens": True}, ["chunk_tokens", "True", "integer"]),
        ({"deadline_ms": -5}, ["deadline_ms", "-5", ">= 1"]),
        ({"address": ""}, ["address", "''", "non-empty"]),
        ({"weights_id": 7}, ["weights_id", "7", "string"]),
        ({"load_failure_policy": "retry"}, ["load_failure_policy", "retry", "recompute"]),
        ({"spec_name": "CPUOffloadingSpec"}, ["spec_name", "CPUOffloadingSpec"]),
        ({"block_size": 512}, ["block_size", "512", "blocks_per_chunk"]),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(extra, names):
    with pytest.raises(ValueError, match="kv_connector_extra_config") as caught:
        settings.parse(extra)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(
    ("tokens", "blocks", "options", "expected"),
    [
        (256, (128,), {}, 2),
        (256, (16,), {}, 16),
        (256, (16, 64), {}, 4),
        (256, (528,), {}, 1),
        (256, (16,), {"has_recurrent_state": True}, 1),
        (256, (16,), {"max_model_tokens": 512}, 8),
        (256, (128,), {"max_model_tokens": 300}, 1),
        (256, (16,), {"retention_tokens": 192}, 12),
        (100, (16,), {}, 6),
    ],
)
def test_blocks_per_chunk(tokens, blocks, options, expected):
    defaults = {"has_recurrent_state": False, "max_model_tokens": 1 << 20, "retention_tokens": None}
    assert settings.blocks_per_chunk(tokens, blocks, **{**defaults, **options}) == expected
