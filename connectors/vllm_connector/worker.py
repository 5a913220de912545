"""Worker side: jobs of the framework to the native copy engine, and back what became of them.

Each worker process has a session of its own in its engine's group. Its copy engine serves one attachment:
after a reattachment a new one takes over (a new `Lane`), and the old one finishes what it was given. A job
from another daemon life than the lane's fails at once; the scheduler has lost its leases too.

All methods run on the worker's main thread, except `_attached`.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from kvtier_connectors.common.guard import guarded, nothing, record_fault
from kvtier_connectors.vllm_connector.devices import DeviceTensors, Region
from kvtier_connectors.vllm_connector.layout import GroupPlan, block_positions
from kvtier_connectors.vllm_connector.transfer import SlotSpec
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

if TYPE_CHECKING:
    from kvtier import Client, CopyEngine

logger = logging.getLogger(__name__)

# A flush waits for copies of host memory, which end by themselves; this bounds a copy thread that is stuck.
FLUSH_TIMEOUT_S = 5.0
# What is in host memory is copied by then; what is not waits for storage.
LOAD_FLUSH_TIMEOUT_S = 0.05
LAND_STEP_S = 0.01
# An engine that is closed has so long to finish; what its device then does not answer for is given up.
CLOSE_TIMEOUT_S = 1.0


@dataclass(eq=False)
class Lane:
    """A copy engine on one attachment's arena, with the KV groups' layouts."""

    engine: "CopyEngine"
    layouts: list[int]
    boot_id: int
    jobs: set[int] = field(default_factory=set)
    withheld: set[int] = field(default_factory=set)  # stores given up: the device may still write their slots


@dataclass(eq=False)
class Load:
    """Where a load under way writes to; `ordinals`: which of the promised chunks each block is of."""

    blocks: npt.NDArray[np.int64]
    ordinals: npt.NDArray[np.int64]
    promised: int
    granted: int

    def lost_blocks(self, valid_chunks: int) -> set[int]:
        """The blocks behind the leading `valid_chunks`."""
        return set(self.blocks[self.ordinals >= valid_chunks].tolist())


class KVTierWorker(OffloadingWorker):
    """The framework's worker. `part`: which part of a chunk this worker copies."""

    absent = False

    def __init__(
        self,
        client: "Client",
        plans: Sequence[GroupPlan],
        regions: Sequence[Sequence[Region]],
        tensors: DeviceTensors,
        *,
        num_blocks: int,
        part: int,
        copy_threads: int,
        load_deadline_ms: int,
        load_window_ms: int,
    ) -> None:
        """regions: per group, (address of block 0, bytes between blocks, page bytes) of each region."""
        self._client = client
        self._plans = tuple(plans)
        self._regions = regions
        self._tensors = tensors
        self._num_blocks = num_blocks
        self._part = part
        self._copy_threads = copy_threads
        self._load_deadline_ms = load_deadline_ms
        self._load_window_s = load_window_ms / 1000
        # vLLM takes single lost blocks where a block id belongs to one group only.
        self._may_be_partial = len(self._plans) == 1 and not self._plans[0].windowed
        self._chunk_bytes = tuple(plan.chunk_bytes for plan in self._plans)
        self._swap = threading.Lock()
        self._lane: Lane | None = None
        self._retired: list[Lane] = []
        self._finished: list[TransferResult] = []
        self._doomed: set[int] = set()  # jobs whose copy must not count, whatever it says
        self._failed: set[int] = set()
        self._loads: dict[int, Load] = {}  # under way
        self._partial: set[int] = set()  # of the failed ones, those whose leading chunks are good
        self._lost_blocks: set[int] = set()  # and the blocks behind these
        self._unwritten: set[int] = set()  # blocks of the other failed loads
        client.on_attach(self._attached)

    # ---- attachment ----

    def _attached(self, boot_id: int, *, replace: bool = True) -> None:
        engine = self._client.copy_engine(
            self._copy_threads, load_deadline_ms=self._load_deadline_ms, device=self._tensors.device
        )
        layouts = [
            engine.add_layout(
                list(regions),
                self._num_blocks,
                plan.blocks_per_chunk,
                chunk_offset=self._part * plan.part_bytes,
            )
            for plan, regions in zip(self._plans, self._regions, strict=True)
        ]
        with self._swap:
            lane = Lane(engine, layouts, boot_id)
            if self._lane is not None:
                self._retired.append(self._lane if replace else lane)
            if self._lane is None or replace:
                self._lane = lane

    # ---- jobs ----

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Device blocks to slots. Always True: a refusal is a failed job, reported by `get_finished`."""
        return self._submit("store", job_id, dst_spec, src_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Slots to device blocks. Always True, as `submit_store`."""
        return self._submit("load", job_id, src_spec, dst_spec)

    def _submit(
        self, direction: Literal["store", "load"], job: int, spec: LoadStoreSpec, device: GPULoadStoreSpec
    ) -> bool:
        try:
            accepted = self._start(direction, job, spec, device)
        except Exception as error:
            record_fault(f"KVTierWorker.submit_{direction}", error)
            accepted = False
        if not accepted:
            self._finish(job, ok=False)
            if direction == "load":
                self._unwritten.update(device.block_ids.tolist())
        return True

    def _start(
        self, direction: Literal["store", "load"], job: int, spec: LoadStoreSpec, device: GPULoadStoreSpec
    ) -> bool:
        lane = self._lane
        if lane is None or not isinstance(spec, SlotSpec) or spec.void or spec.boot_id != lane.boot_id:
            return False
        if spec.chunk_bytes != self._chunk_bytes:
            logger.error(
                "kvtier: scheduler and worker plan other chunk sizes (%s, %s)", spec, self._chunk_bytes
            )
            return False
        positions = block_positions(
            self._plans,
            spec.counts,
            device.group_sizes,
            device.block_indices,
            whole_chunks=direction == "store",
        )
        if positions is None:
            return False
        blocks, sizes = device.block_ids.astype(np.int64), list(device.group_sizes)
        if direction == "load":
            load = Load(blocks, positions, sum(spec.counts), len(spec.slots))
            if self._may_be_partial:
                load.ordinals = positions // self._plans[0].blocks_per_chunk
            if load.granted < load.promised:
                if not (self._may_be_partial and load.granted):
                    return False
                kept = load.ordinals < load.granted
                blocks, positions, sizes = blocks[kept], positions[kept], [int(kept.sum())]
            self._loads[job] = load
        lane.engine.submit(
            job,
            direction,
            lane.layouts,
            sizes,
            blocks,
            positions,
            (spec.slots, spec.generations, spec.offsets),
            **self._tensors.job_options(),
        )
        lane.jobs.add(job)
        return True

    def _finish(
        self, job: int, *, ok: bool, bytes_moved: int = 0, seconds: float = 0.0, valid_chunks: int = 0
    ) -> None:
        load = self._loads.pop(job, None)
        if load is not None:
            ok = ok and load.granted == load.promised
        if job in self._doomed:
            self._doomed.discard(job)
            ok, valid_chunks = False, 0
        if not ok:
            self._failed.add(job)
            if load is not None and valid_chunks and self._may_be_partial:
                self._partial.add(job)
                self._lost_blocks |= load.lost_blocks(valid_chunks)
            elif load is not None:
                self._unwritten.update(load.blocks.tolist())
        # The framework asserts success; what failed travels by `take_failed`.
        self._finished.append(
            TransferResult(job_id=job, success=True, transfer_size=bytes_moved, transfer_time=seconds)
        )

    @guarded(lambda *_: [])
    def get_finished(self) -> list[TransferResult]:
        """Jobs that ended since the last call, each once, failed ones too (see `take_failed`)."""
        self._poll()
        finished, self._finished = self._finished, []
        return finished

    def _poll(self) -> None:
        lanes = self._lanes()
        for lane in lanes:
            if lane.jobs:
                self._poll_lane(lane)
            if lane.withheld:
                landed = lane.withheld - set(lane.engine.unlanded())
                lane.withheld -= landed
                for job in landed:
                    self._finish(job, ok=False)
        for lane in lanes:
            if lane is not self._lane and not lane.jobs and not lane.withheld:
                lane.engine.close(CLOSE_TIMEOUT_S)
                with self._swap:
                    self._retired.remove(lane)

    def _poll_lane(self, lane: Lane) -> None:
        reports = lane.engine.poll()
        given_up = set(lane.engine.unlanded()) if reports else set()
        for job, ok, bytes_moved, seconds, chunks in reports:
            lane.jobs.discard(job)
            if job in given_up and job not in self._loads:
                # Told of it the scheduler would abort its lease, and the slots would be another chunk's.
                lane.withheld.add(job)
            else:
                self._finish(job, ok=ok, bytes_moved=bytes_moved, seconds=seconds, valid_chunks=chunks)

    def _lanes(self) -> list[Lane]:
        with self._swap:
            return [*self._retired, *([self._lane] if self._lane is not None else [])]

    @property
    def layout_words(self) -> str:
        """How the device lays out bytes; of the fingerprint."""
        return self._tensors.words

    @guarded(nothing)
    def load_window(self) -> None:
        """Between two steps: copy what can be of the loads, on devices where that is the time for it."""
        self._load_for(self._load_window_s)

    def land_loads(self) -> None:
        """Wait until all loads under way have ended, as long as one may wait for storage at most.

        Then what is not there never comes: the forward pass reads these blocks, so they count as unwritten.
        """
        end_s = time.monotonic() + self._load_deadline_ms / 1000
        # Chunks that arrive from storage need another window.
        step_s = LAND_STEP_S if self._tensors.windows else self._load_deadline_ms / 1000
        while self._loads and (left_s := end_s - time.monotonic()) > 0:
            self._load_for(left_s)
            for lane in self._lanes():
                if loads := sorted(lane.jobs & self._loads.keys()):
                    lane.engine.wait(loads, min(step_s, left_s))
            self._poll()
        for lane in self._lanes():
            if lane.jobs & self._loads.keys():
                self._replace(lane)

    def _load_for(self, seconds: float) -> None:
        if self._tensors.windows and self._loads:
            for lane in self._lanes():
                if lane.jobs & self._loads.keys():
                    lane.engine.load_window(self._tensors.buffers(), seconds)

    def take_failed(self) -> set[int]:
        """Jobs among those that `get_finished` returned that failed."""
        failed, self._failed = self._failed, set()
        return failed

    def take_partial(self) -> tuple[set[int], set[int]]:
        """Those among them whose leading chunks were loaded, and the device blocks behind these."""
        taken = self._partial, self._lost_blocks
        self._partial, self._lost_blocks = set(), set()
        return taken

    def take_unwritten(self) -> set[int]:
        """The device blocks of failed loads of which nothing counts."""
        blocks, self._unwritten = self._unwritten, set()
        return blocks

    def doom(self, jobs: set[int]) -> None:
        """Let these fail when they end: what they carry is outdated (the cache was reset)."""
        for lane in self._lanes():
            self._doomed |= jobs & lane.jobs

    @guarded(nothing)
    def wait(self, job_ids: set[int]) -> None:
        """Before the device blocks of these jobs are used anew: wait for their copies, bounded.

        A store that is still copying then would store foreign bytes, so it is made to fail. A load that still
        waits for storage would write into the blocks later, so its engine is closed and another one takes
        over: what has not arrived is lost.
        """
        if self._loads.keys() & job_ids:
            self._land_soon()
        for lane in self._lanes():
            try:
                self._end_jobs(lane, job_ids)
            except Exception as error:  # whatever it is, none of these may count any more
                record_fault("KVTierWorker.wait", error)
                self._doomed |= job_ids & lane.jobs

    @guarded(nothing)
    def _land_soon(self) -> None:
        self._load_for(LOAD_FLUSH_TIMEOUT_S)

    def _end_jobs(self, lane: Lane, job_ids: set[int]) -> None:
        jobs = sorted(job_ids & lane.jobs)
        if self._loads.keys() & jobs and not lane.engine.wait(jobs, LOAD_FLUSH_TIMEOUT_S):
            self._replace(lane)
            jobs = []
        if jobs and not lane.engine.wait(jobs, FLUSH_TIMEOUT_S):
            logger.error("kvtier: %d copies not finished after %g s; dropped", len(jobs), FLUSH_TIMEOUT_S)
            self._poll()
            self._doomed |= job_ids & lane.jobs

    def _replace(self, lane: Lane) -> None:
        """Close a lane's engine, which ends all its jobs, and open another in its place if it is in use.

        The blocks of its loads are used at once. Where the device does not answer, what it was given comes
        before that in the queue of the steps; a device that keeps no such order is waited for without an end.
        """
        if not lane.engine.close(CLOSE_TIMEOUT_S):
            late = self._loads.keys() & set(lane.engine.unlanded())
            logger.error("kvtier: the device does not answer; copies are given up (%d loads)", len(late))
            if late and not lane.engine.capabilities()["in_order_queue"]:
                lane.engine.close()
        with self._swap:
            in_use = lane is self._lane
            if in_use:
                self._retired.append(lane)
                self._lane = None
        self._poll()
        if in_use:
            self._attached(lane.boot_id, replace=False)  # unless the client has attached anew meanwhile

    @guarded(nothing)
    def shutdown(self) -> None:
        """Finish the copies, end the session; a device that hangs is not waited for."""
        for lane in self._lanes():
            lane.engine.close(CLOSE_TIMEOUT_S)
        self._client.close()
