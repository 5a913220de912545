"""Who may attach: the daemon's own user alone, or members of one group too.

Group mode opens the sockets (0660) and the directory that the daemon keeps them in (0750). The arena's files
stay 0600: engines receive descriptors, and one of another user cannot open the metadata for writing.
"""

import grp
import os
import socket
import struct
from pathlib import Path
from typing import Final

from kvtier.errors import ConfigError
from kvtier.io import fdpass

_SO_PEERGROUPS: Final = 59  # Linux 4.13; not a name in the socket module
_GID: Final = struct.Struct("I")


class Access:
    """The rule, of one daemon. group: a name or a number; empty: the daemon's own user only."""

    def __init__(self, group: str = "") -> None:
        """ConfigError when there is no such group."""
        self._gid: int | None = None
        self._says = f"uid {os.geteuid()} may"
        if group:
            try:
                self._gid = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
            except KeyError:
                raise ConfigError(f"access_group = {group!r} is not a group of this host") from None
            self._says += f", and group {group}"

    def open_socket(self, path: Path) -> None:
        """Set owner and mode of a socket just bound."""
        self._set(path, 0o600, 0o660)

    def open_directory(self, path: Path) -> None:
        """Let the group through a directory of the daemon's own. Without a group it stays as it is."""
        if self._gid is not None:
            self._set(path, 0o700, 0o750)

    def _set(self, path: Path, private: int, shared: int) -> None:
        if self._gid is None:
            path.chmod(private)
            return
        try:
            os.chown(path, -1, self._gid)  # before the mode: no other group is let in on the way
        except OSError as error:
            raise ConfigError(f"access_group: {path} cannot be given to it: {error.strerror}") from None
        path.chmod(shared)

    def refusal(self, connection: socket.socket, peer: fdpass.Peer) -> str:
        """Why this peer may not attach, in words; empty: it may."""
        if peer.uid == os.geteuid() or (self._gid is not None and self._gid in _groups(connection, peer)):
            return ""
        return f"uid {peer.uid} may not attach; {self._says}"


def _groups(connection: socket.socket, peer: fdpass.Peer) -> set[int]:
    """Those of the peer when it connected, as the kernel recorded them."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
    except OSError:  # more than fit, or a kernel without it: then the first group alone counts
        raw = b""
    return {peer.gid, *(gid for (gid,) in _GID.iter_unpack(raw[: len(raw) // _GID.size * _GID.size]))}
