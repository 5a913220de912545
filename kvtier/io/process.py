"""How a process, and the host's present boot, can be known again by another process later."""

import hashlib
import os
import uuid
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
_START_FIELD: Final = 19  # of /proc/PID/stat behind the name, which may hold spaces and brackets


def start_ticks(pid: int) -> int:
    """When the process began, in the kernel's ticks since its boot; 0 when that cannot be told."""
    try:
        status = (_PROC / str(pid) / "stat").read_text(errors="replace")
        return int(status.rpartition(")")[2].split()[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return 0


def pid_space() -> int:
    """In which namespace our pids and their start times mean something; 0 when that cannot be told.

    A number that is used again belongs to a namespace whose processes have all ended.
    """
    try:
        names = [os.readlink(_PROC / "self/ns" / kind) for kind in ("pid", "time")]
    except OSError:
        return 0
    return int.from_bytes(hashlib.sha256(" ".join(names).encode()).digest()[:8], "little") | 1


def host_boot() -> bytes | None:
    """16 random bytes of the kernel that are the same until the host is started anew; None: it has none."""
    try:
        return uuid.UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return None
