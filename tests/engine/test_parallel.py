"""Two tensor-parallel workers, each with its part of every chunk."""

import os

import pytest
from engines import BYTES_PER_TOKEN, tokens


def test_two_workers_store_and_reload(host, start, dense, references):
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores: vLLM binds each worker to its own")
    options = {
        "engine": {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
        "environment": {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores))},
    }
    prompt = tokens(1400, seed=1)
    expected = references.tokens(dense, [prompt])
    first = start(dense, **options)
    first.warm_up()
    assert first.generate([prompt]) == expected
    host.settle(first)
    first.close()

    second = start(dense, **options)
    second.warm_up()
    assert second.generate([prompt]) == expected
    assert second.external_hits() == 1280
    assert second.loaded_bytes() >= 1280 * BYTES_PER_TOKEN["dense"]
    host.settle(second)
