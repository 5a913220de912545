"""What a transfer job carries from the scheduler to the workers, and what they report back."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.kv_offload.base import LoadStoreSpec

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


@dataclass(eq=False)
class SlotSpec(LoadStoreSpec):
    """Slots of one job, groups one after another. Everything a worker needs; it asks the daemon nothing.

    A load may have fewer slots than `counts` says, the leading ones (only with a single group): the rest is
    recomputed.

    A worker attached to another daemon life than `boot_id` fails the job. `void`: nothing may be copied and
    the job fails (a lease that granted too little, a chunk that is not whole).
    """

    ticket: int = 0  # of the scheduler's books
    boot_id: int = 0
    counts: tuple[int, ...] = ()  # chunks per group
    chunk_bytes: tuple[int, ...] = ()  # per group, as the scheduler planned them
    slots: U32 = field(default_factory=lambda: np.zeros(0, np.uint32))
    generations: U32 = field(default_factory=lambda: np.zeros(0, np.uint32))
    offsets: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    void: bool = False


@dataclass
class WorkerReport(OffloadingWorkerMetadata):
    """The framework's completion report, and which of the jobs failed in this worker."""

    failed_jobs: set[int] = field(default_factory=set)
    absent: bool = False  # a worker cannot copy at all, and never will

    def aggregate(self, other: Any) -> "WorkerReport":
        """The reports of two workers as one: counts add up, one failure is enough."""
        merged = OffloadingWorkerMetadata.aggregate(self, other)
        return WorkerReport(
            completed_jobs=merged.completed_jobs,
            transfer_stats=merged.transfer_stats,
            failed_jobs=self.failed_jobs | getattr(other, "failed_jobs", set()),
            absent=self.absent or getattr(other, "absent", False),
        )
