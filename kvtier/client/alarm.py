"""What the session's background thread sleeps on."""

import os
import select
import socket
import weakref


class Alarm:
    """An eventfd that other threads ring. One thread waits on it, any thread may call `ring`.

    It belongs to the process that made it; a forked child drops its copy with `drop_inherited`.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._close = weakref.finalize(self, _close_in, os.getpid(), self._fd)

    def ring(self) -> None:
        """Wake the waiting thread, or let its next wait return at once."""
        if self._close.alive:
            os.eventfd_write(self._fd, 1)

    def sleep(self, pause_s: float) -> None:
        """Until it rings, at most `pause_s`."""
        self._wait(pause_s, None)

    def until_end(self, connection: socket.socket) -> bool:
        """Until it rings or `connection` says anything; True when it was the connection.

        The peer never sends on it, so anything, the end of file above all, means that it is over.
        """
        return self._wait(None, connection)

    def drop_inherited(self) -> None:
        """In a forked child: close the copy that came with the fork."""
        if self._close.detach():
            os.close(self._fd)

    def _wait(self, pause_s: float | None, connection: socket.socket | None) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if connection is not None:
            poll.register(connection, select.POLLIN | select.POLLHUP)
        ready = {fd for fd, _ in poll.poll(None if pause_s is None else pause_s * 1000)}
        if self._fd in ready:
            os.eventfd_read(self._fd)
        return bool(ready - {self._fd})


def _close_in(pid: int, fd: int) -> None:
    if os.getpid() == pid:
        os.close(fd)
