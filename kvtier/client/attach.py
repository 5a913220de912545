"""How a process attaches: from an address to a session over shared memory.

  1  gRPC `Attach`: versions are compared, a one-time token is given out; a process whose last daemon was lost
     says what it may still be writing in its arena
  2  connect to the session socket that the reply names, send the token
  3  receive five descriptors by SCM_RIGHTS: payload (read-write), metadata (read-only), ring, doorbell,
     catalog (read-only)
  4  map them, check their headers; the descriptors are closed, the mappings stay
  5  open the namespaces this process already uses

The connection of step 2 stays open: its end of file is how either side learns that the other is gone.
"""

import os
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from kvtier.client.channel import ControlChannel
from kvtier.client.namespace import Namespace
from kvtier.errors import DaemonUnavailable, KVTierError, ProtocolMismatch
from kvtier.io import fdpass, native
from kvtier.types import PROTOCOL_VERSION, FormerSession


class Attachment:
    """One life with the daemon. `indexes`: namespace id -> its index of this boot."""

    def __init__(
        self,
        *,
        number: int,
        boot_id: int,
        session_id: int,
        session: native.Session,
        connection: socket.socket,
    ) -> None:
        self.number = number  # of this client: 1 for its first attach
        self.boot_id = boot_id
        self.session_id = session_id  # the daemon's number for it
        self.arena_id = session.arena_id  # lease numbers mean the same for every daemon of this arena
        self.session = session
        self.connection = connection
        self.indexes: dict[bytes, int] = {}
        self.refused: dict[bytes, KVTierError] = {}  # why a namespace could not be opened
        self.copies = False  # a copy engine was made, which may write under another session's leases

    def open_namespace(self, control: ControlChannel, ns: Namespace) -> None:
        """Open it for this boot. DaemonUnavailable when another boot answers."""
        info = control.open_namespace(ns.fingerprint_json, ns.chunk_bytes, ns.label, ns.epoch_below)
        if info.boot_id != self.boot_id:
            raise DaemonUnavailable(f"{control.address}: the daemon was restarted during the attach")
        self.indexes[ns.id] = info.index

    def remember(self, namespaces: Iterable[Namespace]) -> None:
        """Have each note what the next daemon is to be told of it. The mapping outlives the daemon."""
        for ns in namespaces:
            if (index := self.indexes.get(ns.id)) is not None:
                ns.remember(self.session.epoch_below(index))

    def close(self) -> None:
        """End the session in order: this process writes into no slot any more.

        Unless a copy engine has given up on its device: then it does not say so, and slots of its group that
        were reserved are kept until the process is gone.
        """
        with suppress(native.DaemonLost):
            self.session.ping()  # what was posted before is served before the end of file is seen
        self._end(fdpass.DRAINED if native.unlanded_stores() == 0 else b"")

    def abandon(self, held: list[int]) -> FormerSession | None:
        """End a lost session. held: the write leases that somebody may still be writing under.

        What else it had reserved is free at once: a reserve that ran into its deadline never handed its
        slots out. Returns the same for the next daemon of this arena, should there be one; None when there
        are too many leases to name.
        """
        farewell = fdpass.leaving(held, copies=self.copies)
        self._end(farewell)
        return FormerSession(self.boot_id, self.session_id, tuple(held), self.copies) if farewell else None

    def _end(self, farewell: bytes) -> None:
        self.session.mark_lost()
        with suppress(OSError):
            self.connection.sendall(farewell)
        self.connection.close()


def attach(
    control: ControlChannel,
    *,
    number: int,
    name: str,
    group: str,
    deadline_ms: int,
    timeout_s: float,
    namespaces: Iterable[Namespace] = (),
    former: FormerSession | None = None,
) -> Attachment:
    """The five steps. Raises DaemonUnavailable, ProtocolMismatch, or what the daemon refuses with.

    A namespace that cannot be opened does not fail the attach: see `Attachment.refused`.
    """
    grant = control.attach(name, group, former=former)
    if grant.protocol_version != PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"daemon speaks protocol {grant.protocol_version}, this client {PROTOCOL_VERSION}"
        )
    with ExitStack() as undo:
        connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.settimeout(timeout_s)
        try:
            connection.connect(grant.session_socket)
            fds = fdpass.receive_descriptors(connection, grant.token)
        except OSError as error:
            raise DaemonUnavailable(f"{grant.session_socket}: {error.strerror or error}") from None
        except fdpass.Refused as error:
            raise DaemonUnavailable(f"{grant.session_socket}: the session was refused: {error}") from None
        session = _map(fds, deadline_ms)
        attachment = Attachment(
            number=number,
            boot_id=grant.boot_id,
            session_id=grant.session,
            session=session,
            connection=connection,
        )
        if session.boot_id != grant.boot_id:
            raise DaemonUnavailable(f"{control.address}: the daemon was restarted during the attach")
        for ns in namespaces:
            try:
                attachment.open_namespace(control, ns)
            except DaemonUnavailable:
                raise
            except KVTierError as error:
                attachment.refused[ns.id] = error
        undo.pop_all()
    return attachment


def _map(fds: list[int], deadline_ms: int) -> native.Session:
    """The session on these descriptors, which are closed whatever happens."""
    data_fd, meta_fd, ring_fd, doorbell_fd, catalog_fd = fds
    try:
        return native.Session(
            data_fd=data_fd,
            meta_fd=meta_fd,
            ring_fd=ring_fd,
            doorbell_fd=doorbell_fd,
            catalog_fd=catalog_fd,
            deadline_ms=deadline_ms,
        )
    except ValueError as error:
        raise ProtocolMismatch(f"the daemon's shared memory does not fit this client: {error}") from None
    except (OSError, RuntimeError) as error:
        raise DaemonUnavailable(f"the daemon's shared memory cannot be mapped: {error}") from None
    finally:
        for fd in fds:
            os.close(fd)
