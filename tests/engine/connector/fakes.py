"""A kvtier client in memory, with the calls that the adapter makes, and truthful books for assertions."""

import numpy as np

from kvtier import DaemonUnavailable, Grant, Hit, SlotGrants, SlotLease


class FakeNamespace:
    """Chunks as a dict from key to slot; every lease is remembered until it is given back."""

    def __init__(self, capacity=1000):
        self.capacity = capacity
        self.present: dict[bytes, int] = {}
        self.stored: set[bytes] = set()  # of these, those on storage only
        self.prefetched: list[list[bytes]] = []
        self.pending: set[bytes] = set()
        self.leases: dict[int, tuple[str, list[bytes]]] = {}
        self.log: list[tuple[str, int]] = []
        self.lookups = 0
        self.touched: list[bytes] = []
        self.renewed: list[list[bytes]] = []
        self.attached = True
        self.boot_id = 77
        self.cleared = 0
        self.clear_fails = False
        self.lost = False
        self._number = 0

    def _check(self):
        if self.lost:
            raise DaemonUnavailable("gone")

    def _take(self, kind, keys):
        if not keys:
            return 0
        self._number += 1
        self.leases[self._number] = (kind, keys)
        return self._number

    def _arrays(self, keys):
        slots = np.arange(len(keys), dtype=np.uint32)
        return slots, slots + 1, slots.astype(np.uint64) * 4096

    def lookup_count(self, keys):
        self.lookups += 1
        if self.lost:
            return 0
        for count, key in enumerate(keys):
            if key not in self.present:
                return count
        return len(keys)

    def lookup_tiers(self, keys):
        count = self.lookup_count(keys)
        below = sum(key in self.stored for key in keys[:count])
        return Hit(count, count - below, below)

    def prefetch(self, keys):
        self._check()
        self.prefetched.append(keys)

    def wait_slots(self, lease, timeout_s):
        keys = self.leases[lease.lease][1]
        return next((place for place, key in enumerate(keys) if key in self.stored), len(keys))

    def lease_slots(self, keys):
        self._check()
        count = self.lookup_count(keys)
        return SlotLease(self._take("read", list(keys[:count])), self.boot_id, 1, *self._arrays(keys[:count]))

    def reserve_slots(self, keys):
        self._check()
        grants, granted = [], []
        for key in keys:
            if key in self.present:
                grants.append(Grant.PRESENT)
            elif key in self.pending:
                grants.append(Grant.PENDING)
            elif len(self.present) + len(self.pending) >= self.capacity:
                grants.append(Grant.NO_SPACE)
            else:
                grants.append(Grant.GRANTED)
                granted.append(key)
                self.pending.add(key)
        return SlotGrants(
            self._take("write", granted), self.boot_id, 1, *self._arrays(granted), np.array(grants, np.uint8)
        )

    def commit_slots(self, lease):
        for key in self._end("commit", lease):
            self.present[key] = 0
        return True

    def abort_slots(self, lease):
        self._end("abort", lease)

    def release_slots(self, lease):
        self._end("release", lease)

    def _end(self, how, lease):
        if lease.lease == 0:
            return []
        self.log.append((how, lease.lease))
        kind, keys = self.leases.pop(lease.lease)
        assert (kind == "read") == (how == "release")
        self.pending.difference_update(keys)
        return keys

    def touch(self, keys):
        self.touched.extend(keys)

    def renew(self, keys):
        self._check()
        self.renewed.append(keys)

    def clear(self):
        if self.clear_fails:
            raise DaemonUnavailable("busy")
        self.cleared += 1
        self.present.clear()
        return 0


class FakeEngine:
    """A copy engine whose jobs end when the test says so."""

    def __init__(self):
        self.layouts: list[tuple] = []
        self.submitted: dict[int, tuple] = {}
        self.finished: list[tuple[int, bool, int, float, int]] = []
        self.waits: list[list[int]] = []
        self.windows: list[tuple] = []
        self.options: dict[int, dict] = {}
        self.stuck = False
        self.late: set[int] = set()  # jobs that a close gives up
        self.in_order_queue = True
        self.closes: list[float | None] = []
        self.closed = False

    def add_layout(self, regions, num_blocks, blocks_per_chunk, chunk_offset=0):
        self.layouts.append((regions, num_blocks, blocks_per_chunk, chunk_offset))
        return len(self.layouts) - 1

    def load_window(self, buffers, seconds):
        self.windows.append((buffers, seconds))
        return True

    def submit(self, job, direction, layouts, group_sizes, block_ids, block_positions, refs, **options):
        self.options[job] = options
        self.submitted[job] = (
            direction,
            layouts,
            group_sizes,
            block_ids.tolist(),
            block_positions.tolist(),
            refs,
        )

    def end(self, job, ok=True, chunks=0):
        self.finished.append((job, ok, 100, 0.5, chunks))

    def poll(self):
        finished, self.finished = self.finished, []
        return finished

    def wait(self, jobs, timeout_s):
        self.waits.append(list(jobs))
        return not self.stuck

    def close(self, timeout_s=None):
        self.closed = True
        self.closes.append(timeout_s)
        for job in [job for job in self.submitted if self.stuck]:
            self.end(job, ok=False)
        return not self.late

    def unlanded(self):
        return list(self.late)

    def capabilities(self):
        return {"in_order_queue": self.in_order_queue}


class FakeClient:
    """Attaches when the test says so."""

    def __init__(self):
        self.engines: list[FakeEngine] = []
        self.devices = []
        self.callbacks = []
        self.closed = False

    def on_attach(self, callback):
        self.callbacks.append(callback)

    def attach(self, boot_id):
        for callback in self.callbacks:
            callback(boot_id)

    def copy_engine(self, threads=0, *, load_deadline_ms=10_000, device=None):
        self.devices.append(device)
        self.engines.append(FakeEngine())
        return self.engines[-1]

    def close(self):
        self.closed = True
