"""What the client's calls answer: plain values, safe to pickle and to send to another process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

# Keys of one call: a list of bytes, or one C-contiguous uint8 array of shape (count, key_bytes); the
# array is the fast form. Every key has 16 to 64 bytes.
Keys = Sequence[bytes] | U8


class Grant(IntEnum):
    """What a reserve says about one key."""

    GRANTED = 0
    PRESENT = 1  # already readable
    PENDING = 2  # another writer has it reserved
    NO_SPACE = 3  # nothing can be evicted for it
    DRAINING = 4  # the daemon is stopping and grants nothing new


@dataclass(frozen=True, slots=True)
class Hit:
    """Leading keys that are readable: a hint, as the next eviction may take them."""

    chunks: int = 0
    host_chunks: int = 0  # of these, in DRAM now
    storage_chunks: int = 0  # the others: on storage, or on their way up from there

    def __bool__(self) -> bool:
        return self.chunks > 0


@dataclass(frozen=True, slots=True, eq=False)
class SlotLease:
    """Slots of one lease as arrays of one length, in key order: everything a copy needs.

    `refs` goes to `CopyEngine.submit`. The lease is good in the daemon life `boot_id` only: a process that
    is attached to another one must fail the copy, and gives nothing back (the daemon took it back).
    """

    lease: int = 0  # 0: no slot was leased, nothing to give back
    boot_id: int = 0
    attachment: int = 0  # of the client that took it; private to that client
    slots: U32 = field(default_factory=lambda: np.zeros(0, np.uint32))
    generations: U32 = field(default_factory=lambda: np.zeros(0, np.uint32))
    offsets: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def refs(self) -> tuple[U32, U32, U64]:
        """(slots, generations, offsets), the form that the copy engine takes."""
        return self.slots, self.generations, self.offsets


@dataclass(frozen=True, slots=True, eq=False)
class SlotGrants(SlotLease):
    """A write lease as arrays: `grants` has one `Grant` per key asked for, the rest only the granted ones."""

    grants: U8 = field(default_factory=lambda: np.zeros(0, np.uint8))
