"""An SGLang engine in a process of its own, driven as `kvtier.demo.engine_child` drives vLLM's."""

import os
import sys
import time
from typing import Any

from kvtier.demo.engine_child import serve

TOLD = ("output_token_logprobs", "cached_tokens", "cached_tokens_details")


class SGLangChild:
    """The commands: every public method is one. Each returns what JSON can carry."""

    def start(self, model: str, engine: dict[str, Any], connector: dict[str, Any] | None) -> dict[str, float]:
        """model, connector: unused; both are among the engine's own arguments."""
        import sglang

        began_s = time.monotonic()
        self.engine = sglang.Engine(**engine)
        return {"start_s": time.monotonic() - began_s}

    def generate(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One request after another, and of each answer what the tests look at."""
        outputs = [self.engine.generate(**request) for request in requests]
        return [
            {
                "output_ids": output["output_ids"],
                "meta_info": {name: output["meta_info"].get(name) for name in TOLD},
            }
            for output in outputs
        ]

    def forget(self) -> bool:
        """Empty the engine's own caches, on the device and on the host."""
        return bool(self.engine.flush_cache().success)


if __name__ == "__main__":
    serve(SGLangChild(), int(sys.argv[1]))  # type: ignore[arg-type]
    # How an engine dies must be no matter to the daemon; its children end with their parent.
    os._exit(0)
