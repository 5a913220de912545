"""What the native module offers to Python. Every call that can take time releases the GIL.

Keys are given as a list of bytes, or as one C-contiguous uint8 array of shape (count, key_bytes).
Errors: ValueError for a wrong argument (message names it), DaemonLost when the daemon does not answer
within the deadline (and at once on every later call of that Session).
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from tpu_sync_native._devices import *  # noqa: F403  what is there is of this module as well
from tpu_sync_native._devices import CopyBackend

Keys = Sequence[bytes] | npt.NDArray[np.uint8]
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Keep = npt.NDArray[np.uint8] | npt.NDArray[np.bool_]

class DaemonLost(RuntimeError): ...

def build_info() -> dict[str, str]: ...
def ring_bytes() -> int:
    """Size a ring file has; doorbell files are one page (4096 bytes). Both must be fresh memfds made with
    MFD_ALLOW_SEALING: the store sizes them and seals them against shrinking."""

class SlotRefs:
    """Slots of a lease, as arrays of one length."""

    slots: U32
    generations: U32
    offsets: U64  # bytes into the payload file
    def __len__(self) -> int: ...

class ReadGrant:
    lease: int  # 0: no key was present, or the daemon is draining
    count: int  # leading keys that are leased
    refs: SlotRefs

class WriteGrant:
    lease: int  # 0: nothing was granted
    grants: U8  # per key: 0 granted, 1 present, 2 pending (another writer), 3 no space, 4 draining
    refs: SlotRefs  # of the granted keys, in key order

# ---- daemon side -----------------------------------------------------------------------------

class Store:
    """The host tier of one daemon: arena, index, slots, leases, and the thread that serves the rings."""

    def __init__(
        self,
        *,
        data_fd: int,  # payload file; sized (ftruncate) here, populated in the background
        meta_fd: int,  # metadata file; sized and initialised here, unless it is kept
        doorbell_fd: int,  # memfd of one page, shared by all sessions
        dram_bytes: int,
        slab_bytes: int = 0,  # 0: dram_bytes / 64, between 2 MiB and 1 GiB
        slots_max: int = 0,  # 0: dram_bytes / 16 KiB
        policy: str = "lru",
        boot_id: int,
        lease_ms: int = 600_000,
        host_boot: bytes = ...,  # 16 bytes: the host's present boot
        keep: bool = False,  # take over what an earlier daemon left: see why_not_kept
        checksum: str = "off",  # of payloads in memory: off, sampled or always
    ) -> None: ...
    def start(self) -> None: ...  # the population of the arena, the ring thread and housekeeping
    def stop(self) -> None: ...  # joins the threads; idempotent
    def populated_bytes(self) -> int: ...
    def population_error(self) -> str | None: ...  # why population stopped early (no space)
    def open_namespace(self, id: bytes, chunk_bytes: int) -> int: ...
    def clear_namespace(self, ns: int) -> int: ...
    def set_floor(self, ns: int, bytes: int) -> None: ...
    def epoch_below(self, ns: int) -> int:
        """See `Session.epoch_below`."""

    def set_epoch_below(self, ns: int, word: int) -> None: ...
    def withhold_namespace(self, ns: int) -> None:
        """Serve nothing of what it holds before the tier below says of which epoch it is."""

    def await_settled(self, ns: int, wait_s: float) -> bool:
        """Wait until nothing is withheld; False when the time was over first."""
    def open_session(
        self,
        session: int,
        group: int,
        pid: int,
        ring_fd: int | None,
        start: int = 0,  # how a later daemon finds the process again; 0: unknown
        space: int = 0,
        maps: bool = True,  # it may write into slots
    ) -> None:
        """ring_fd None: a session without a ring (the same calls over gRPC). The fd is duplicated."""
    def last_session(self) -> int: ...  # the highest number of the arena's life
    def restored_sessions(self) -> list[dict[str, int]]:
        """An earlier daemon's, whose processes may still write until `close_session` says otherwise."""
    def close_session(self, session: int, drained: bool, held: list[int] | None = None) -> bool:
        """What the session had posted by now still counts; then its leases go back. Idempotent.
        held: the write leases that its process knows of; the others are aborted. None: it may know them all.
        True: it may still be writing, until it has drained or ended, or is succeeded.
        """
    def succeed(self, former: int, heir: int) -> bool: ...  # whose end is waited for in its stead
    def lookup(self, ns: int, keys: Keys) -> int: ...  # leading keys that are readable, from any tier
    def lookup_tiers(self, ns: int, keys: Keys) -> tuple[int, int]: ...  # the same, those of them in DRAM
    def lease(self, session: int, ns: int, keys: Keys) -> ReadGrant: ...
    def release(self, session: int, lease: int) -> None: ...
    def reserve(self, session: int, ns: int, keys: Keys) -> WriteGrant: ...
    # False when the namespace was cleared since the reserve: the chunks are gone.
    def commit(self, session: int, lease: int, keep: Keep | None = None) -> bool: ...
    def abort(self, session: int, lease: int) -> None: ...
    def touch(self, session: int, ns: int, keys: Keys) -> None: ...
    def prefetch(self, ns: int, keys: Keys) -> int:
        """What lies on storage is promoted, without a lease; how many chunks that begins."""
    def set_draining(self, draining: bool) -> None: ...
    def expire_leases(self, now_ms: int) -> None: ...
    def evict(self, ns: int, bytes: int) -> int: ...
    def stats(self) -> dict[str, int]: ...
    def namespaces(self) -> list[dict[str, Any]]: ...
    def sessions(self) -> list[dict[str, Any]]: ...
    def list_chunks(self, ns: int, after: int | None, limit: int) -> list[dict[str, Any]]: ...
    def take_damaged(self) -> list[dict[str, Any]]: ...  # dropped since the last call: namespace, key, offset
    def audit(self) -> list[str]: ...

def check_arena(*, data_fd: int, meta_fd: int) -> dict[str, Any]: ...  # fields: src/store/arena_check.h
def why_not_kept(
    *, data_fd: int, meta_fd: int, dram_bytes: int, slab_bytes: int = 0, slots_max: int = 0, host_boot: bytes
) -> str:
    """Why a store of these options cannot keep the files, field and both values; empty: it can."""

POLICIES: Final[tuple[str, ...]]

# ---- engine side -----------------------------------------------------------------------------

class Session:
    """One process's life with the daemon, over shared memory. Thread-safe; not usable after a fork."""

    def __init__(
        self,
        *,
        data_fd: int,
        meta_fd: int,
        ring_fd: int,
        doorbell_fd: int,
        catalog_fd: int | None = None,
        deadline_ms: int = 50,
    ) -> None:
        """Maps the files (the fds may be closed afterwards); ValueError when a header does not fit.

        Lost, for good, after: one missed deadline, a ring the daemon closed, another boot id, a fork,
        mark_lost or close. From then on every call raises DaemonLost at once and lookup says 0; views stay
        readable."""
    boot_id: int
    arena_id: bytes
    data_bytes: int
    lost: bool
    def mark_lost(self) -> None:
        """The session socket ended: from now on every call raises DaemonLost at once and lookup says 0."""
    def epoch_below(self, ns: int) -> int:
        """Opaque: what of the namespace the next daemon is to be told, 0 if nothing. Also when lost."""
    def lookup(self, ns: int, keys: Keys) -> int:
        """Leading keys that are readable, from any tier. No IPC, no side effect. 0 when lost."""
    def lookup_tiers(self, ns: int, keys: Keys) -> tuple[int, int]:
        """(leading keys readable from any tier, those of them that are in DRAM)."""
    def present(self, ns: int, keys: Keys) -> npt.NDArray[np.bool_]:
        """Of each key by itself: it is readable, from any tier. All False when lost."""
    def lease(self, ns: int, keys: Keys) -> ReadGrant: ...
    def reserve(self, ns: int, keys: Keys) -> WriteGrant: ...
    def release(self, lease: int) -> None:
        """Posted: returns before the daemon has seen it."""
    def commit(self, lease: int, keep: Keep | None = None, *, wait: bool = True) -> bool:
        """keep: one byte per granted slot, 0 aborts that slot; None commits all.

        wait: True when the chunks are readable, False when the namespace was cleared meanwhile; ValueError
        for a lease the daemon does not know. Not wait: posted, always True."""
    def abort(self, lease: int) -> None: ...
    def touch(self, ns: int, keys: Keys) -> None: ...
    def renew(self, ns: int, keys: Keys) -> None:
        """Posted: what was reserved after these chunks lies behind them in their prefix; it goes first."""
    def prefetch(self, ns: int, keys: Keys) -> None:
        """Posted: chunks on storage are promoted, without a lease."""
    def wait_ready(self, slots: U32, generations: U32, timeout_s: float) -> int:
        """Until every slot is committed or lost, or the time is over; leading slots that are committed."""
    def ping(self) -> None: ...
    def drained(self) -> None:
        """Posted: this process writes no more into any slot (before an orderly close)."""
    def view(self, offset: int, length: int, writable: bool) -> memoryview:
        """Bytes of the arena; keeps the mapping alive as long as the view lives."""
    def unchanged(self, slots: U32, generations: U32) -> npt.NDArray[np.bool_]:
        """Per slot: committed, reserved or promoting under this very generation still; for after a copy."""
    def counters(self) -> dict[str, int]: ...
    def close(self) -> None:
        """The same as mark_lost; posts nothing (see drained). The maps go when the last view does."""

class CopyEngine:
    """Copies between device blocks and arena slots on its own threads (host backend: plain memory)."""

    def __init__(
        self,
        session: Session | None,
        *,
        threads: int = 0,
        arena: memoryview | None = None,
        ready_deadline_ms: int = 10_000,
        backend: CopyBackend | None = None,  # None: host_backend()
    ) -> None:
        """The arena is the session's (or `arena`, for tests and benchmarks).

        threads 0: half the cores, 1 to 4. A job waits so long at most for its next chunk from storage, for
        what the device still does with its buffers, and for a load window."""
    def add_layout(
        self,
        # (address of block 0, bytes between blocks, page bytes). Where the backend has buffers, an address is
        # (ordinal of the buffer << DEVICE_BUFFER_SHIFT) + offset.
        regions: Sequence[tuple[int, int, int]],
        num_blocks: int,
        blocks_per_chunk: int,
        chunk_offset: int = 0,  # where this worker's part starts in a slot
    ) -> int:
        """Geometry of one KV group's blocks; returns its id.

        In a slot, the pages of region 0 of all the chunk's blocks come first, then those of region 1, ...:
        consecutive blocks make long runs."""
    def submit(
        self,
        job: int,
        direction: Literal["store", "load"],
        layouts: Sequence[int],  # one entry per group
        group_sizes: Sequence[int],  # blocks per group
        block_ids: npt.NDArray[np.int64],  # device blocks, group after group
        # Per block: chunk ordinal * blocks_per_chunk + block within the chunk. The ordinal counts into the
        # slots, generations and offsets of this job.
        block_positions: npt.NDArray[np.int64],
        refs: SlotRefs | tuple[U32, U32, U64],
        buffers: npt.NDArray[np.uint64] | Sequence[int] | None = None,
        stream: int | None = None,
    ) -> None:
        """One job. It fails when a slot's generation is not that of refs before or after its copy.

        buffers: where the backend has buffers, what its runtime calls each of them now, by ordinal; they are
        held until the job has ended. A job whose buffers are gone fails, and is reported as any other. Loads
        need none where the device replaces buffers: they are copied in load windows.

        stream: where the backend has streams, the one the engine uses these blocks on, as its runtime calls
        it (a CUstream); the job waits for what was launched on it so far. A stream that cannot be asked fails
        the job. None: nothing uses the blocks any more.

        A load may name slots whose chunks are still on their way: it is copied as they arrive, in order, and
        what is pending when it has waited ready_deadline_ms for its next chunk is lost.

        ValueError for what is out of bounds and for a job still in flight: nothing was queued. RuntimeError
        when closed or in a forked child."""
    def load_window(self, buffers: npt.NDArray[np.uint64] | Sequence[int], seconds: float) -> bool:
        """Copy what can be copied of the loads into these buffers, for at most so long (GIL released).

        For devices that replace buffers, between two steps; on others, and when no load waits, it returns at
        once. True: no load is left that could go on. ValueError when a layout does not fit the buffers."""
    def poll(self) -> list[tuple[int, bool, int, float, int]]:
        """Finished jobs since the last call: (job, ok, bytes, seconds, leading chunks that were valid)."""
    def wait(self, jobs: Sequence[int], timeout_s: float) -> bool:
        """Block (GIL released) until these jobs are finished; they are still reported by poll."""
    def pending(self) -> int: ...
    def counters(self) -> dict[str, int]:
        """store_jobs, store_bytes, load_jobs, load_bytes, failed_jobs, extents (after coalescing), cpu_ns;
        load_waits: times a load waited for its next chunk on its way from storage;
        fence_waits: jobs that waited for the device;
        refused_holds: jobs and windows whose buffers were gone; load_windows: those that were opened;
        late_windows: those whose loads failed because a piece did not land in time;
        unready_windows: those that did not open, because a step had the buffers all the time."""
    def capabilities(self) -> dict[str, Any]:
        """Of the backend, see CopyBackend."""
    def copy(self, extents: npt.NDArray[np.uint64]) -> None:
        """Copy (source address, target address, length) rows and wait; for benchmarks and tests."""
    def close(self, timeout_s: float | None = None) -> bool:
        """Finish what was submitted, join the threads, let go of `arena`. Idempotent.

        With a time, a device that hangs is given up some seconds after it: what it was to copy has failed,
        and is reported. False: so it is, see `unlanded`. Another call waits again."""
    def unlanded(self) -> list[int]:
        """Jobs that were given up, which the device may still write: neither a store's slots nor a load's
        blocks may be given to anybody else yet."""

def unlanded_stores() -> int:
    """Of all copy engines of this process, also of those that are gone: stores that were given up, and may
    still write into their slots."""

def copy_reference(
    extents: npt.NDArray[np.uint64], method: Literal["memcpy", "non_temporal"], threads: int
) -> tuple[float, float]:
    """Copy rows like CopyEngine.copy by plain threads: (wall seconds, CPU seconds). For benchmarks."""

# ---- files: the medium under the storage tier ------------------------------------------------

Bytes = bytes | bytearray | memoryview | npt.NDArray[Any]

class FileReader:
    def read(self, offset: int, buffers: Sequence[Bytes]) -> None:
        """Fill all of them; EOFError when the file ends before."""
    def size(self) -> int: ...

class FileAppender:
    def append(self, buffers: Sequence[Bytes]) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...

class Files:
    """What the storage tier sees of a medium, for tests and benchmarks: a directory, or a PythonFiles (of
    kvtier.io.objects). direct: O_DIRECT where it works; ring_*: io_uring where it is permitted."""

    def __init__(
        self, where: str | object, *, direct: bool = True, ring_reads: bool = True, ring_writes: bool = False
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def appends_readable(self) -> bool: ...
    @property
    def renames(self) -> bool: ...
    def check_root(self) -> None:
        """OSError says in words why the root cannot be used."""
    def open_read(self, path: str) -> FileReader: ...
    def open_append(self, path: str, bytes_expected: int = 0) -> FileAppender: ...
    def read_all(self, path: str, bytes_max: int) -> bytes: ...
    def publish(self, path: str, data: bytes, exclusive: bool = False) -> None: ...
    def make_directory(self, path: str, exclusive: bool = False) -> None: ...
    def list(self, path: str) -> list[tuple[str, bool]]: ...
    def rename(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def space(self) -> tuple[int, int]:
        """Total and free bytes; both 0 when it cannot be known."""

# ---- storage ---------------------------------------------------------------------------------

class Storage:
    """The tier below DRAM: segments on a shared directory. The daemon's, beside its Store and stopped before
    that. Nothing here waits for the medium longer than it was told to."""

    def __init__(
        self,
        store: Store,
        *,
        root: str,  # a directory; or "" with `files`
        files: object | None = None,  # a Python file system (kvtier.io.objects), for object stores
        catalog_fd: int,  # memfd; sized and initialised here; engines get it read-only
        host_id: bytes,  # 16 random bytes
        boot_id: int,
        options: dict[str, int | float],  # fields of StorageOptions by name; unknown ones are ValueError
        seal: str = "none",  # or mac, encrypt; with seal_key of 32 bytes
        seal_key: bytes = b"",
    ) -> None: ...
    def check_root(self, wait_s: float) -> None:
        """Make or check the root's marker; ValueError says why the root cannot be used."""
    def start(self) -> None: ...
    def stop(self, wait_s: float) -> bool:
        """Leave in order as far as the medium answers; False when a thread hangs and was left behind."""
    def open_namespace(
        self, ns: int, id: bytes, chunk_bytes: int, meta_json: str, codec: str = "raw", told: int = 0
    ) -> None:
        """codec: as codec_unavailable takes it, or auto: which pays, found out. told: `Session.epoch_below`
        of an earlier daemon's time."""
    def clear_namespace(self, ns: int) -> None: ...
    def clear_unopened(self, id: bytes, wait_s: float) -> int: ...  # the epoch made, 0 if nothing is there
    def flush(self, wait_s: float) -> bool:
        """Until everything committed so far is written or dropped; False when the time was over first."""
    def state(self) -> str: ...
    def stats(self) -> dict[str, int]: ...
    def namespaces(self) -> list[dict[str, Any]]:
        """Of each: index, state (ready, apart: why, opening[: why], clearing, refused: why), records, bytes,
        hosts and codec; with codec auto also what came out best at the last look ("" before the first), its
        share of a chunk's bytes, and its times to write and to read over those of a raw chunk: codec_tried,
        codec_share, codec_write, codec_read."""

def catalog_make_empty(catalog_fd: int, boot_id: int) -> None:
    """The catalog of a daemon without storage: lookups find nothing in it."""

# ---- the storage format, for tools; a file is its path or a descriptor, of a regular file -------

def scan_segment(file: str | int, check_payloads: bool, seal_key: bytes = b"") -> dict[str, Any]:
    """Every record, bad ones too, and those that seal_key did not seal. OSError: the medium fails.
    namespace, host (bytes), number, epoch, chunk_bytes: of the header, number 0 when it is not one;
    file_bytes, valid_bytes, stopped: the first fault in words, "" when there is none, and where it is;
    records: dicts of key, offset, stored_bytes (with padding), codec, payload_crc, why ("" when sound)."""

def read_index(file: str | int) -> dict[str, Any]:
    """ValueError in words when it is not a sound index. namespace, host, number, epoch, chunk_bytes,
    segment_bytes, sealed, records (as scan_segment's, without why)."""

def read_lease(file: str | int) -> dict[str, Any]:
    """ValueError in words when it is not a lease. host, boot_id, counter, bytes, changes, leaving."""

def crc32c(data: bytes, crc: int = 0) -> int: ...
def crc32c_kernel() -> str: ...
def codec_unavailable(codec: str) -> str:
    """Why this process cannot use the codec; "" when it can. ValueError for a name that is none."""

def encode_payload(codec: str, data: bytes) -> bytes | None:
    """None: it does not shrink enough, and is to be stored raw."""

def decode_payload(codec: str, data: bytes, chunk_bytes: int) -> bytes:
    """ValueError when `data` does not decode to exactly that many bytes."""
