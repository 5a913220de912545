"""Little room: preemption while stores and loads run. What was stored is judged by another process."""

from engines import tokens

SMALL = {"num_gpu_blocks_override": 34, "max_num_seqs": 8, "max_model_len": 2048}  # 3 of 8 prompts fit
ANSWER_TOKENS = 80


def test_preemption_poisons_nothing(host, start, dense, references):
    prompts = [tokens(1400, seed=100 + i) for i in range(8)]  # 11 blocks each, the 12th needed soon
    expected = references.tokens(dense, prompts, ANSWER_TOKENS)
    writer, reader = start(dense, engine=SMALL, wait=False), start(dense, wait=False)
    writer.started().warm_up()
    for _ in range(2):  # the second time loads compete with stores and preemptions
        assert writer.generate(prompts, ANSWER_TOKENS) == expected
    assert writer.call("metrics")["num_preemptions"] > 0
    host.settle(writer)

    reader.started().warm_up()
    assert reader.generate(prompts, ANSWER_TOKENS) == expected
    assert reader.external_hits() == 8 * 1280
    host.settle(reader, writer)
