"""One vLLM engine in a process of its own, driven line by line: a JSON command in, a JSON answer out.

Started by `engine_process.py` as `python -m kvtier.demo.engine_child FD`; FD is a Unix stream socket. A
command is `[name, arguments]`, the answer `{"ok": value}` or `{"error": traceback}`. End of file on FD ends
the process.
"""

import importlib
import json
import os
import socket
import sys
import time
import traceback
from typing import Any


class EngineChild:
    """The commands: every public method is one. Each returns what JSON can carry."""

    def __init__(self) -> None:
        self.llm: Any = None

    def start(self, model: str, engine: dict[str, Any], connector: dict[str, Any] | None) -> dict[str, float]:
        """Start the engine: float32 (greedy answers are then the same whatever the batch), no tokenizer."""
        vllm = importlib.import_module("vllm")
        config = importlib.import_module("vllm.config")
        began = time.monotonic()
        self.llm = vllm.LLM(
            model,
            skip_tokenizer_init=True,
            enforce_eager=True,
            seed=0,
            disable_log_stats=False,
            kv_transfer_config=config.KVTransferConfig(**connector) if connector else None,
            **{"dtype": "float32", **engine},
        )
        return {"start_s": time.monotonic() - began}

    def generate(self, prompts: list[list[int]], max_tokens: int, salt: str | None = None) -> dict[str, Any]:
        """Greedy tokens, cached prompt tokens, finish reasons and times to first token, per prompt."""
        asked = [self.prompt(ids, salt) for ids in prompts]
        outputs = self.llm.generate(asked, self.sampling(max_tokens), use_tqdm=False)
        return {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens for output in outputs],
            "reasons": [output.outputs[0].finish_reason for output in outputs],
            "ttft_s": [output.metrics.first_token_latency for output in outputs],
        }

    def metrics(self) -> dict[str, float]:
        """Sums of the engine's counters and gauges, by name without `vllm:`."""
        sums: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            value = getattr(metric, "value", None)
            if value is not None:
                name = metric.name.removeprefix("vllm:")
                sums[name] = sums.get(name, 0) + value
        return sums

    def tier_bytes(self) -> dict[str, float]:
        """Bytes that kvtier has loaded into this engine, by the tier that they lay in."""
        found = [metric for metric in self.llm.get_metrics() if metric.name == "vllm:kvtier_loaded_bytes"]
        return {metric.labels["tier"]: metric.value for metric in found}

    def forget(self) -> bool:
        """Empty the engine's own prefix cache, not the connector's."""
        return bool(self.llm.reset_prefix_cache())

    @staticmethod
    def prompt(ids: list[int], salt: str | None = None) -> dict[str, Any]:
        """A prompt of token ids as vLLM takes it."""
        return {"prompt_token_ids": ids, **({"cache_salt": salt} if salt else {})}

    @staticmethod
    def sampling(max_tokens: int) -> Any:
        """Temperature 0, exactly `max_tokens` tokens."""
        parameters = importlib.import_module("vllm").SamplingParams
        return parameters(temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True)


def serve(child: EngineChild, fd: int) -> None:
    """Answer commands until end of file."""
    with socket.socket(fileno=fd) as channel, channel.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            name, arguments = json.loads(line)
            try:
                answer = {"ok": getattr(child, name)(**arguments)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            stream.write(json.dumps(answer) + "\n")
            stream.flush()


if __name__ == "__main__":
    serve(EngineChild(), int(sys.argv[1]))
    # An engine in this very process has nothing to end in order, and waits for its threads for ever.
    os._exit(0)
