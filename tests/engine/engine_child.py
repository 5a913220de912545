"""The engine's process of these tests: the demo's, plus faults and steps that need the engine's inside."""

import os
import sys
import time
from collections.abc import Callable

from engine_faults import LoadGate, StoreProbe, fail_next_load_here  # beside this file
from step_waits import StepWaits

from kvtier.demo.engine_child import EngineChild, serve

STEP_DEADLINE_S = 60.0


class FaultyChild(EngineChild):
    """Scheduler and worker live in this process, so a test can step them and reach the worker."""

    _gate: LoadGate | None = None
    _waits: StepWaits | None = None

    @property
    def gate(self) -> LoadGate:
        if self._gate is None:
            self._gate = LoadGate(self._connector())
        return self._gate

    def invalidate(self) -> bool:
        """Empty the engine's own prefix cache and the connector's."""
        return self.llm.reset_prefix_cache(reset_connector=True)

    def fail_loads(self, valid_chunks: int, jobs: int) -> None:
        """The next `jobs` loads find another generation in every slot after the first `valid_chunks`."""
        self.gate.fail(valid_chunks, jobs)

    def fail_loads_of_workers(self, valid_chunks: list[int]) -> None:
        """The next load of each worker keeps so many chunks, by rank. Workers are processes of their own."""
        self.llm.collective_rpc(fail_next_load_here, args=(valid_chunks,))

    def failed_loads(self) -> int:
        return self.gate.failed

    def abort_while_loading(self, prompt: list[int]) -> int:
        """Add a request, hold its load back, abort it there, let the load go. Returns the loads held."""
        engine = self.llm.llm_engine
        self.gate.hold()
        engine.add_request("aborted", self.prompt(prompt), self.sampling(8))
        self._step_until(lambda: self.gate.held > 0, "no load was submitted")
        held = self.gate.held
        engine.abort_request(["aborted"])
        for _ in range(3):
            engine.step()
        self.gate.let_go()
        return held

    def begin_storing(self, prompt: list[int]) -> int:
        """Step a request until it has submitted a store, and return at once, in the middle of it."""
        engine = self.llm.llm_engine
        stores = StoreProbe(self._connector())
        engine.add_request("storing", self.prompt(prompt), self.sampling(64))
        self._step_until(lambda: stores.submitted > 0, "no store was submitted")
        return stores.submitted

    def watch_steps(self) -> None:
        """From now on note how long steps spend in kvtier."""
        core = self.llm.llm_engine.engine_core.engine_core
        self._waits = StepWaits(self.llm.llm_engine, [core.scheduler.connector, self._connector()])

    def longest_step_wait(self) -> float:
        """Of the steps since the last call, in ms."""
        assert self._waits is not None
        return self._waits.take()

    def free_blocks(self) -> int:
        """Blocks of the engine's own KV cache that no request holds."""
        core = self.llm.llm_engine.engine_core.engine_core
        return core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def _step_until(self, done: Callable[[], bool], complaint: str) -> None:
        limit = time.monotonic() + STEP_DEADLINE_S
        while not done():
            if time.monotonic() > limit:
                raise TimeoutError(complaint)
            self.llm.llm_engine.step()

    @staticmethod
    def _connector():
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()


if __name__ == "__main__":
    serve(FaultyChild(), int(sys.argv[1]))
    # As kvtier.demo.engine_child does. How an engine dies must be no matter to the daemon.

    os._exit(0)
