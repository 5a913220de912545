"""Descriptors over a Unix socket, and who is at its other end.

The session socket's whole protocol: the client sends its 32-byte token; the daemon answers one byte `OK`
with the descriptors payload (read-write), metadata (read-only), ring, doorbell, catalog (read-only), in this
order, or one byte `REFUSED` and the reason as text. The client may say one thing more before it closes:
`DRAINED`, it writes no more into any slot; or, when it has lost the session, `leaving(...)`, which names the
write leases that it may still be writing under. Nothing else is ever sent; the end of file ends the session.
"""

import contextlib
import os
import socket
import struct
from typing import Final, NamedTuple

OK: Final = b"\x01"
REFUSED: Final = b"\x00"
DRAINED: Final = b"\x02"
_LEAVING: Final = b"\x03"
_LEASE: Final = struct.Struct("<Q")
HELD_MAX: Final = 8192
FAREWELL_BYTES_MAX: Final = 2 + _LEASE.size * HELD_MAX
DESCRIPTORS: Final = 5
REASON_BYTES_MAX: Final = 512


class Peer(NamedTuple):
    """Credentials the kernel recorded when the peer connected; pid 0: of a PID namespace we cannot see."""

    pid: int
    uid: int
    gid: int


class Farewell(NamedTuple):
    """What a client said before the end of file.

    held: leases that it may still be writing under, and it knows of no others; None when it said nothing.
    """

    drained: bool = False
    held: list[int] | None = None


def leaving(held: list[int], *, copies: bool) -> bytes:
    """Client: the farewell of a lost session. copies: it may also write under other sessions' leases.

    Too many leases to name are not named: then all are taken for held.
    """
    if len(held) > HELD_MAX:
        return b""
    return _LEAVING + bytes([copies]) + b"".join(_LEASE.pack(lease) for lease in held)


def farewell(said: bytes, *, whole: bool) -> Farewell | None:
    """Daemon: what `said` means. None when it is not in the protocol, or as the `whole` of it is not."""
    if said in (b"", DRAINED):
        return Farewell(drained=said == DRAINED)
    if said[:1] != _LEAVING or len(said) > FAREWELL_BYTES_MAX or said[1:2] > b"\x01":
        return None
    if not whole:
        return Farewell()
    if len(said) < 2 or (len(said) - 2) % _LEASE.size:
        return None
    held = [lease for (lease,) in _LEASE.iter_unpack(said[2:])]
    return Farewell(drained=not held and said[1] == 0, held=held)


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
    """Client: present the token and wait, within the socket's timeout, for the five descriptors.

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
