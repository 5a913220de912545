"""One vLLM engine in a process of its own, driven line by line: a JSON command in, a JSON answer out.

Started by tests/engine/engines.py as `python engine_child.py FD`; FD is a Unix stream socket. The engine runs in this very process
(scheduler and worker in one), so that a test can step it and reach its worker. End of file on FD ends the process.
"""

import json
import os
import socket
import sys
import time
import traceback

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import engine_faults  # beside this file
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group

STEP_DEADLINE_S = 60.0


class Child:
    """The commands. Each returns what JSON can carry."""

    def __init__(self) -> None:
        self._llm: LLM | None = None
        self._gate: engine_faults.LoadGate | None = None

    def start(self, model: str, engine: dict, connector: dict | None) -> dict:
        began = time.monotonic()
        parallel = engine.get("tensor_parallel_size", 1)
        self._llm = LLM(
            model,
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            seed=0,
            disable_log_stats=False,
            distributed_executor_backend="uni" if parallel == 1 else "mp",
            kv_transfer_config=KVTransferConfig(**connector) if connector else None,
            **engine,
        )
        if connector and parallel == 1:
            self._gate = engine_faults.LoadGate(get_kv_transfer_group())
        return {"start_s": time.monotonic() - began}

    def generate(self, prompts: list[list[int]], max_tokens: int, salt: str | None = None) -> dict:
        """Tokens, cached prompt tokens and finish reasons, in the order of the prompts."""
        outputs = self._llm.generate(
            [self._prompt(ids, salt) for ids in prompts], self._sampling(max_tokens), use_tqdm=False
        )
        return {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens for output in outputs],
            "reasons": [output.outputs[0].finish_reason for output in outputs],
        }

    def metrics(self) -> dict:
        """Sums of the engine's own counters and gauges, by name without `vllm:`."""
        sums: dict[str, float] = {}
        for metric in self._llm.get_metrics():
            value = getattr(metric, "value", None)
            if value is not None:
                name = metric.name.removeprefix("vllm:")
                sums[name] = sums.get(name, 0) + value
        return sums

    def reset(self, connector: bool) -> bool:
        return self._llm.llm_engine.reset_prefix_cache(reset_connector=connector)

    def fail_loads(self, valid_chunks: int, jobs: int) -> None:
        """The next `jobs` loads find another generation in every slot after the first `valid_chunks`."""
        self._gate.fail(valid_chunks, jobs)

    def failed_loads(self) -> int:
        return self._gate.failed

    def abort_while_loading(self, prompt: list[int]) -> dict:
        """Add a request, hold its load, abort it there, let the load go, step until the engine is idle."""
        engine = self._llm.llm_engine
        self._gate.hold()
        engine.add_request("aborted", self._prompt(prompt, None), self._sampling(8))
        self._step_until(lambda: self._gate.held > 0, "no load was submitted")
        held = self._gate.held
        engine.abort_request(["aborted"])
        for _ in range(3):
            engine.step()
        self._gate.let_go()
        return {"held": held}

    def free_blocks(self) -> int:
        """Blocks of the engine's own KV cache that no request holds."""
        return self._llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def begin_storing(self, prompt: list[int]) -> dict:
        """Step a request until its first chunks are being stored, and return in the middle of it."""
        engine = self._llm.llm_engine
        stores = engine_faults.StoreProbe(get_kv_transfer_group())
        engine.add_request("storing", self._prompt(prompt, None), self._sampling(64))
        self._step_until(lambda: stores.submitted > 0, "no store was submitted")
        return {"submitted": stores.submitted}

    def _step_until(self, done, complaint: str) -> None:
        limit = time.monotonic() + STEP_DEADLINE_S
        while not done():
            if time.monotonic() > limit:
                raise TimeoutError(complaint)
            self._llm.llm_engine.step()

    @staticmethod
    def _prompt(ids: list[int], salt: str | None) -> dict:
        return {"prompt_token_ids": ids, **({"cache_salt": salt} if salt else {})}

    @staticmethod
    def _sampling(max_tokens: int) -> SamplingParams:
        return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    child = Child()
    with channel, channel.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            name, arguments = json.loads(line)
            try:
                answer = {"ok": getattr(child, name)(**arguments)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            stream.write(json.dumps(answer) + "\n")
            stream.flush()


if __name__ == "__main__":
    main()
    # Nothing of the engine is worth an orderly end here, and how it dies is no matter to the daemon.
    os._exit(0)
