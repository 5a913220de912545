"""Sessions: from a token to the end of the process.

1. `grant` (gRPC Attach) keeps a token of 32 random bytes for ten seconds.
2. The engine connects to the session socket and sends it. The peer must be our own user; a token works once.
3. The session is opened in the store with a ring of its own, and the five descriptors are sent.
4. The session lasts until the connection ends, or the process does (a forked child may hold the connection
   open). Read leases come back at once. Without proof that the process is gone, and without its word that it
   has drained, the store quarantines what it had reserved (of which it may say that it holds only a part)
   until the pidfd gives that proof, or its group ends the leases after all.

Everything runs on the daemon's event loop; no method blocks it.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import socket
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvtier import logs
from kvtier.clock import Clock
from kvtier.daemon.deaths import Deaths
from kvtier.daemon.names import shown
from kvtier.daemon.survivors import Survivors
from kvtier.daemon.watches import kept
from kvtier.errors import Draining, LimitReached, UnknownSession
from kvtier.io import fdpass
from kvtier.io.access import Access
from kvtier.io.native import Store
from kvtier.io.pidfd import has_ended, peer_pidfd
from kvtier.io.process import pid_space, start_ticks
from kvtier.io.shm import memfd
from kvtier.types import PROTOCOL_VERSION, TOKEN_BYTES, AttachGrant, FormerSession, SessionInfo

SESSIONS_MAX: Final = 256
PENDING_MAX: Final = 64
STRANGERS_MAX: Final = 64
"""Connections that have not shown a token yet."""
TOKEN_LIFE_S: Final = 10.0
TOKEN_WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Known:
    session: int
    client: str
    pid: int
    group: str
    opened_s: float
    has_ring: bool
    former: FormerSession | None = None
    peer: int = 0  # pid of who connected, as the kernel says it; 0: not seen from our PID namespace


class SharedFds(NamedTuple):
    """What every engine receives, apart from its own ring; borrowed. `meta` and `catalog` are read-only."""

    data: int
    meta: int
    doorbell: int
    catalog: int


class Sessions:
    """All sessions of one daemon, and the socket that engines attach through."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        boot_id: int,
        socket_path: Path,
        shared_fds: SharedFds,
        access: Access | None = None,  # None: this user's engines only
    ) -> None:
        self._store = store
        self._clock = clock
        self._boot_id = boot_id
        self._path = socket_path
        self._access = access or Access()
        self._shared = shared_fds
        self._log = logs.get("sessions")
        self._pending: OrderedDict[bytes, tuple[_Known, float]] = OrderedDict()
        self._known: dict[int, _Known] = {}
        self._last = store.last_session()
        self._space = pid_space()
        self._strangers = 0
        self._draining = False
        self._listener: socket.socket | None = None
        self._bound: os.stat_result  # of the listener's name
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: list[asyncio.Task[None]] = []  # at most one
        self._deaths = Deaths(self._ended)
        self._left: dict[int, _Known] = {}  # closed, and perhaps still writing: watched
        self._heirs: dict[int, int] = {}  # open still, though its client has attached anew -> that session
        self._survivors = Survivors(store, self._deaths)

    # ---- lifecycle ----

    def start(self) -> None:
        """Look after an earlier daemon's sessions, and listen on the session socket (0600)."""
        self._survivors.start()
        self.listen()

    def listen(self) -> None:
        """On a new session socket, in place of whatever has its name. Open sessions do not notice."""
        for task in self._accepting:
            task.cancel()
        if self._listener is not None:
            self._listener.close()
            self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(str(self._path))
        self._access.open_socket(self._path)
        listener.listen(2 * STRANGERS_MAX)
        self._listener, self._bound = listener, os.stat(self._path)
        self._accepting = [self._spawn(kept("session socket", lambda: self._accept(listener)))]

    def refuse_new(self) -> None:
        """No attach from now on; sessions that are open live on."""
        self._draining = True
        self._pending.clear()

    async def stop(self) -> None:
        """End every session; engines see the end of file."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._path), self._bound):  # else it is another daemon's
                    self._path.unlink()
        self._deaths.close()

    # ---- what the service asks for ----

    def grant(self, client: str, pid: int, group: str, former: FormerSession | None = None) -> AttachGrant:
        """A one-time token for a session that does not exist yet. former: heard once it does."""
        self._expire_pending()
        if len(self._pending) >= PENDING_MAX:
            raise LimitReached(f"{PENDING_MAX} attaches are pending; no more are allowed")
        known = replace(self._new(client, pid, group, has_ring=True), former=former)
        token = secrets.token_bytes(TOKEN_BYTES)
        self._pending[token] = known, self._clock.now_s() + TOKEN_LIFE_S
        return AttachGrant(PROTOCOL_VERSION, self._boot_id, known.session, token, str(self._path))

    def open_plain(self, client: str) -> int:
        """A session without shared memory; whoever opens it must `close_plain` it."""
        known = self._new(client, 0, "", has_ring=False)
        self._open(known, None, 0)
        return known.session

    def close_plain(self, session: int) -> None:
        """It never saw the arena, so nothing of it can still be written."""
        self._known.pop(session, None)
        self._store.close_session(session, True)

    def require_plain(self, session: int) -> int:
        """The same number, if it is an open session without shared memory; UnknownSession otherwise."""
        known = self._known.get(session)
        if known is None or known.has_ring:
            raise UnknownSession(f"session {session} is not an open session of the Session call")
        return session

    def list(self) -> tuple[SessionInfo, ...]:
        """Open sessions with what they hold, oldest first."""
        held = {row["session"]: row for row in self._store.sessions()}
        return tuple(self._info(known, held.get(known.session, {})) for known in self._known.values())

    # ---- inside ----

    def _new(self, client: str, pid: int, group: str, has_ring: bool) -> _Known:
        if self._draining:
            raise Draining("the daemon is stopping; no new sessions")
        self._expire_pending()
        if len(self._known) + len(self._pending) >= SESSIONS_MAX or self._deaths.full:
            raise LimitReached(f"{SESSIONS_MAX} sessions are open; no more are allowed")
        self._last += 1
        return _Known(
            self._last,
            shown(client),
            pid,
            shown(group) or f"session {self._last}",
            self._clock.now_s(),
            has_ring,
        )

    def _open(self, known: _Known, ring_fd: int | None, pid: int) -> None:
        """pid: of the process, in our PID namespace; 0 when it is not seen from there."""
        group = int.from_bytes(hashlib.sha256(known.group.encode()).digest()[:8], "little")
        known = replace(known, peer=max(pid, 0))
        self._store.open_session(
            known.session,
            group,
            known.pid,
            ring_fd,
            start=start_ticks(pid) if pid > 0 else 0,
            space=self._space if pid > 0 else 0,
            maps=known.has_ring,
        )
        self._known[known.session] = known
        former = known.former
        if former is None:
            return
        if former.boot_id != self._boot_id:
            self._survivors.heard(former, group)
        elif _same_client(self._left.get(former.session), known):
            self._succeed(former.session, known.session)
        elif _same_client(self._known.get(former.session), known):
            self._heirs[former.session] = known.session

    def _succeed(self, former: int, heir: int) -> None:
        """A client that loses its session again and again is to be watched once, not once for each."""
        if not self._store.succeed(former, heir):
            # The heir is over already, and said, or was proven, to write no more.
            self._store.close_session(former, True)
        self._left.pop(former, None)
        self._deaths.forget(former)
        for session, of_it in self._heirs.items():
            if of_it == former:
                self._heirs[session] = heir

    def _ended(self, session: int) -> None:
        self._left.pop(session, None)
        self._store.close_session(session, True)

    def _info(self, known: _Known, held: dict[str, Any]) -> SessionInfo:
        counts = ("read_leases", "write_leases", "pinned_slots", "reserved_slots")
        return SessionInfo(
            session=known.session,
            client=known.client,
            pid=known.pid,
            group=known.group,
            age_s=self._clock.now_s() - known.opened_s,
            **{name: held.get(name, 0) for name in counts},
        )

    def _expire_pending(self) -> None:
        now_s = self._clock.now_s()
        while self._pending and next(iter(self._pending.values()))[1] <= now_s:
            self._pending.popitem(last=False)

    def _redeem(self, token: bytes) -> _Known | None:
        self._expire_pending()
        found = self._pending.pop(token, None)
        return found[0] if found else None

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("a session's task failed", exc_info=error)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors: those of dying sessions come back
                self._log.warning("accept failed", error=error.strerror)
                await asyncio.sleep(0.1)
                continue
            connection.setblocking(False)
            if self._strangers >= STRANGERS_MAX:
                connection.close()
                continue
            self._strangers += 1
            self._spawn(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                known, pid = await self._admit(connection)
            finally:
                self._strangers -= 1
            if known is not None:
                await self._live(connection, known, pid)

    async def _admit(self, connection: socket.socket) -> tuple[_Known | None, int]:
        peer = fdpass.peer_of(connection)
        if reason := self._access.refusal(connection, peer):
            self._refuse(connection, peer, reason)
            return None, 0
        try:
            async with asyncio.timeout(TOKEN_WAIT_S):
                token = await self._read_token(connection)
        except (TimeoutError, OSError):
            token = b""
        known = self._redeem(token)
        if known is None:
            self._refuse(connection, peer, "the token is unknown, used or older than 10 s")
        return known, peer.pid

    async def _read_token(self, connection: socket.socket) -> bytes:
        loop, token = asyncio.get_running_loop(), b""
        while len(token) < TOKEN_BYTES:
            part = await loop.sock_recv(connection, TOKEN_BYTES - len(token))
            if not part:
                break
            token += part
        return token

    def _refuse(self, connection: socket.socket, peer: fdpass.Peer, reason: str) -> None:
        self._log.warning("attach refused", pid=peer.pid, uid=peer.uid, reason=reason)
        try:
            fdpass.send_refusal(connection, reason)
        except OSError as error:
            self._log.debug("peer left before it was told", error=error.strerror)

    async def _live(self, connection: socket.socket, known: _Known, pid: int) -> None:
        if pid > 0:  # 0: of a PID namespace we cannot see; then its own word is shown
            known = replace(known, pid=pid)
        ring_fd = memfd("kvtier-ring")
        pidfd = peer_pidfd(connection, pid)
        said = fdpass.Farewell()
        try:
            self._open(known, ring_fd, pid)
            shared = self._shared
            fds = [shared.data, shared.meta, ring_fd, shared.doorbell, shared.catalog]
            fdpass.send_descriptors(connection, fds)
            os.close(ring_fd)
            ring_fd = -1
            self._log.info("session opened", session=known.session, client=known.client, pid=known.pid)
            said = await self._until_end(connection, pidfd)
        except (OSError, ValueError) as error:
            self._log.warning("session failed", session=known.session, error=str(error))
        finally:
            if ring_fd >= 0:
                os.close(ring_fd)
            self._end(known, pidfd, said)

    async def _until_end(self, connection: socket.socket, pidfd: int | None) -> fdpass.Farewell:
        """Wait for the end of file, of the process or of the protocol. What the client had said by then."""
        loop = asyncio.get_running_loop()
        died = asyncio.Event()
        if pidfd is not None:
            loop.add_reader(pidfd, died.set)
        death = loop.create_task(died.wait())
        read = loop.create_task(loop.sock_recv(connection, fdpass.FAREWELL_BYTES_MAX))
        said = b""
        try:
            while True:
                await asyncio.wait((read, death), return_when=asyncio.FIRST_COMPLETED)
                part = read.result() if read.done() and read.exception() is None else b""
                said += part
                meant = fdpass.farewell(said, whole=not part)
                if not part or meant is None:
                    return meant or fdpass.Farewell()
                read = loop.create_task(loop.sock_recv(connection, fdpass.FAREWELL_BYTES_MAX))
        finally:
            death.cancel()
            read.cancel()
            if pidfd is not None:
                loop.remove_reader(pidfd)

    def _end(self, known: _Known, pidfd: int | None, said: fdpass.Farewell) -> None:
        known = self._known.pop(known.session, known)
        ended = pidfd is not None and has_ended(pidfd)
        watched = self._store.close_session(known.session, said.drained or ended, said.held)
        self._log.info(
            "session closed",
            session=known.session,
            pid=known.pid,
            drained=said.drained,
            held=None if said.held is None else len(said.held),
            process_ended=ended,
        )
        heir = self._heirs.pop(known.session, None)
        if watched and heir is None:
            self._left[known.session] = known
            self._deaths.watch(known.session, pidfd)
            return
        if pidfd is not None:
            os.close(pidfd)
        if watched and heir is not None:
            self._succeed(known.session, heir)


def _same_client(former: _Known | None, now: _Known) -> bool:
    """Whether a session may be what a client says was its own: of the same process and the same group."""
    if former is None or now.peer <= 0:
        return False
    return (former.peer, former.group) == (now.peer, now.group)
