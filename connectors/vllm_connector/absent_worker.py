"""A worker for engines that nothing can be copied for."""

from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult


class AbsentWorker(OffloadingWorker):
    """A worker that cannot copy (no backend for its device, tensors that do not fit): every job fails."""

    def __init__(self) -> None:
        self._jobs: list[int] = []
        self._failed: set[int] = set()
        self._unwritten: set[int] = set()

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Fails."""
        self._jobs.append(job_id)
        self._failed.add(job_id)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Fails."""
        self._unwritten.update(dst_spec.block_ids.tolist())
        return self.submit_store(job_id, src_spec, dst_spec)

    absent = True
    layout_words = ""

    def load_window(self) -> None:
        """There is nothing to load."""

    land_loads = load_window

    def get_finished(self) -> list[TransferResult]:
        """The failed jobs."""
        jobs, self._jobs = self._jobs, []
        return [TransferResult(job_id=job, success=True, transfer_size=0, transfer_time=0.0) for job in jobs]

    def take_failed(self) -> set[int]:
        """The failed jobs, again."""
        failed, self._failed = self._failed, set()
        return failed

    def take_partial(self) -> tuple[set[int], set[int]]:
        """None of them copied anything."""
        return set(), set()

    def take_unwritten(self) -> set[int]:
        """The device blocks of the loads among them."""
        blocks, self._unwritten = self._unwritten, set()
        return blocks

    def doom(self, jobs: set[int]) -> None:
        """Failed already."""

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is under way."""
