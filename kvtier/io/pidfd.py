"""A descriptor that becomes readable when a process ends: the only proof that it writes no more."""

import contextlib
import os
import select
import socket
import struct
from typing import Final

_SO_PEERPIDFD: Final = 77  # Linux 6.5; not yet a name in the socket module


def peer_pidfd(connection: socket.socket, pid: int) -> int | None:
    """A pidfd of the process that connected, or None when the kernel offers no way to it.

    SO_PEERPIDFD works across PID namespaces and cannot meet a recycled pid. Without it, pidfd_open(pid) is
    safe as long as the connection is alive, which the caller sees by its next read.
    """
    with contextlib.suppress(OSError):  # an older kernel, or the process is gone already
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i"))
        fd: int = struct.unpack("i", raw)[0]
        os.set_inheritable(fd, False)
        return fd
    if pid > 0:
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


def has_ended(pidfd: int) -> bool:
    """True once the process has ended."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))
