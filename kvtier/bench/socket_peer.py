"""A process at the other end of a Unix socket: what a call costs without shared memory."""

import os
import socket
from types import TracebackType
from typing import Final, Self

_REPLY_BYTES: Final = 64


class SocketPeer:
    """Reads requests of one size and answers each with 64 bytes. A child process, ended at the exit."""

    def __init__(self, request_bytes: int) -> None:
        self._request = bytes(request_bytes)
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _serve(theirs, request_bytes)
        theirs.close()
        self._socket.settimeout(10)

    def round_trip(self) -> None:
        """One request and its answer."""
        self._socket.sendall(self._request)
        _receive(self._socket, _REPLY_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        os.waitpid(self._pid, 0)


def _serve(channel: socket.socket, request_bytes: int) -> None:
    try:
        while _receive(channel, request_bytes):
            channel.sendall(bytes(_REPLY_BYTES))
    finally:
        os._exit(0)


def _receive(channel: socket.socket, count: int) -> bool:
    """Read exactly `count` bytes; False at the end of file."""
    view = memoryview(bytearray(count))
    while view:
        got = channel.recv_into(view)
        if got == 0:
            return False
        view = view[got:]
    return True
