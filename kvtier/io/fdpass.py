"""Descriptors over a Unix socket, and who is at its other end.

The session socket's whole protocol: the client sends its 32-byte token; the daemon answers one byte `OK`
with the descriptors payload (read-write), metadata (read-only), ring, doorbell, in this order, or one byte
`REFUSED` and the reason as text. Afterwards the client may send `DRAINED` once, before an orderly close: it
writes no more into any slot. Nothing else is ever sent; the end of file ends the session.
"""

import contextlib
import os
import socket
import struct
from typing import Final, NamedTuple

OK: Final = b"\x01"
REFUSED: Final = b"\x00"
DRAINED: Final = b"\x02"
DESCRIPTORS: Final = 4
REASON_BYTES_MAX: Final = 512


class Peer(NamedTuple):
    """Credentials the kernel recorded when the peer connected; pid 0: of a PID namespace we cannot see."""

    pid: int
    uid: int
    gid: int


class Refused(Exception):
    """The daemon did not accept the token; the text is its reason."""


def peer_of(connection: socket.socket) -> Peer:
    """Who connected."""
    size = struct.calcsize("3i")
    return Peer(*struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)))


def send_descriptors(connection: socket.socket, fds: list[int]) -> None:
    """Daemon: accept. OSError when the peer is gone."""
    socket.send_fds(connection, [OK], fds)


def send_refusal(connection: socket.socket, reason: str) -> None:
    """Daemon: refuse, in words. OSError when the peer is gone."""
    connection.send(REFUSED + reason.encode()[:REASON_BYTES_MAX])


def receive_descriptors(connection: socket.socket, token: bytes) -> list[int]:
    """Client: present the token and wait, within the socket's timeout, for the four descriptors.

    The caller owns them. Raises Refused with the daemon's reason, OSError on a broken connection.
    """
    with contextlib.suppress(BrokenPipeError):  # refused unheard: the reason is there to be read
        connection.sendall(token)
    answer, fds, _, _ = socket.recv_fds(connection, 1 + REASON_BYTES_MAX, DESCRIPTORS)
    for fd in fds:
        os.set_inheritable(fd, False)
    if answer == OK and len(fds) == DESCRIPTORS:
        return fds
    for fd in fds:
        os.close(fd)
    if not answer:
        raise ConnectionResetError("the daemon closed the session socket before it answered")
    raise Refused(answer[1:].decode(errors="replace") if answer[:1] == REFUSED else "unexpected answer")
