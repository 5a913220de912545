"""Faults put into a running engine's worker, inside its process: loads held back, loads that fail half way.

They wrap the submissions of vLLM's OffloadingWorker contract and nothing else: what happens after is real.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np


class LoadGate:
    """Stands between the engine and its worker's `submit_load`."""

    def __init__(self, connector: Any) -> None:
        self._worker = connector.connector_worker.worker
        self._submit = self._worker.submit_load
        self._wait = self._worker.wait
        self._worker.submit_load = self._submit_load
        self._worker.wait = self._wait_for
        self._waiting: list[tuple[Any, Any, Any]] | None = None
        self._valid_chunks = 0
        self._to_fail = 0
        self.failed = 0

    @property
    def held(self) -> int:
        return len(self._waiting or ())

    def hold(self) -> None:
        """Loads submitted from now on wait for `let_go`."""
        self._waiting = []

    def let_go(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for load in waiting:
            self._submit(*load)

    def fail(self, valid_chunks: int, jobs: int) -> None:
        """In the next `jobs` loads all chunks after the first `valid_chunks` look reused."""
        self._valid_chunks, self._to_fail = valid_chunks, jobs

    def _submit_load(self, job_id: Any, src_spec: Any, dst_spec: Any) -> bool:
        if self._to_fail > 0:
            self._to_fail -= 1
            self.failed += 1
            src_spec = reused_after(src_spec, self._valid_chunks)
        if self._waiting is None:
            return self._submit(job_id, src_spec, dst_spec)
        self._waiting.append((job_id, src_spec, dst_spec))
        return True

    def _wait_for(self, job_ids: Iterable[Any]) -> None:
        self.let_go()
        self._wait(job_ids)


def fail_next_load_here(worker: Any, valid_chunks: list[int]) -> None:
    """In a worker's process: its next load loses what comes after its rank's `valid_chunks`."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    LoadGate(get_kv_transfer_group()).fail(valid_chunks[worker.rank], 1)


class StoreProbe:
    """Counts the stores an engine submits."""

    def __init__(self, connector: Any) -> None:
        self._submit = connector.connector_worker.worker.submit_store
        connector.connector_worker.worker.submit_store = self._submit_store
        self.submitted = 0

    def _submit_store(self, *arguments: Any, **named: Any) -> bool:
        accepted = self._submit(*arguments, **named)
        self.submitted += 1
        return accepted


def reused_after(spec: Any, valid_chunks: int) -> Any:
    """The same slots, but from chunk `valid_chunks` on of another generation than the arena's."""
    generations = np.array(spec.generations, copy=True)
    generations[valid_chunks:] += 1
    spec.generations = generations
    return spec
