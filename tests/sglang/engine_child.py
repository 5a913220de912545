"""An SGLang engine in a process of its own, driven as `kvtier.demo.engine_child` drives vLLM's."""

import os
import sys
import time
from typing import Any

from kvtier.demo.engine_child import serve


class SGLangChild:
    """The commands: every public method is one. Each returns what JSON can carry."""

    def start(self, model: str, engine: dict[str, Any], connector: dict[str, Any] | None) -> dict[str, float]:
        """connector: unused; HiCache is among the engine's own arguments."""
        import sglang

        began_s = time.monotonic()
        self.engine = sglang.Engine(
            model_path=model,
            device="cpu",
            dtype="float32",
            skip_tokenizer_init=True,
            attention_backend="torch_native",
            sampling_backend="pytorch",
            disable_overlap_schedule=True,
            disable_cuda_graph=True,
            mem_fraction_static=0.1,
            max_running_requests=4,
            random_seed=1,
            enable_cache_report=True,
            **engine,
        )
        return {"start_s": time.monotonic() - began_s}

    def generate(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Greedy, one prompt after another: tokens, how likely they were, what of the prompt was cached."""
        sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
        answers: dict[str, list[Any]] = {"tokens": [], "logprobs": [], "cached": [], "from_storage": []}
        for prompt in prompts:
            output = self.engine.generate(input_ids=prompt, sampling_params=sampling, return_logprob=True)
            meta = output["meta_info"]
            answers["tokens"].append(output["output_ids"])
            answers["logprobs"].append([step[0] for step in meta["output_token_logprobs"]])
            answers["cached"].append(meta["cached_tokens"])
            details = meta.get("cached_tokens_details") or {}
            answers["from_storage"].append(details.get("storage", 0))
        return answers

    def forget(self) -> bool:
        """Empty the engine's own caches, on the device and on the host."""
        return bool(self.engine.flush_cache().success)


if __name__ == "__main__":
    serve(SGLangChild(), int(sys.argv[1]))  # type: ignore[arg-type]
    # How an engine dies must be no matter to the daemon; its children end with their parent.
    os._exit(0)
