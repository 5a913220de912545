"""Tokens, limits and ends, with a clock of our own and a store that only writes down."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager

import pytest

from kvtier.clock import ManualClock
from kvtier.daemon import sessions
from kvtier.daemon.sessions import TOKEN_LIFE_S, Sessions, SharedFds
from kvtier.errors import Draining, LimitReached, UnknownSession
from kvtier.io import fdpass


class Written:
    """The part of a store that sessions use."""

    def __init__(self):
        self.calls = []
        self.closed = asyncio.Event()

    def last_session(self):
        return 0

    def restored_sessions(self):
        return []

    def open_session(self, session, group, pid, ring_fd, *, start, space, maps):
        assert maps == (ring_fd is not None)
        assert (start > 0) == (space > 0) == maps
        self.calls.append(("open", session, group, pid, ring_fd is not None))

    def close_session(self, session, drained, held=None):
        self.calls.append(("close", session, drained, held))
        self.closed.set()

    def sessions(self):
        return []


@asynccontextmanager
async def running(tmp_path):
    null = os.open("/dev/null", os.O_RDWR)
    store, clock = Written(), ManualClock()
    path = tmp_path / "s"
    held = Sessions(store, clock, boot_id=9, socket_path=path, shared_fds=SharedFds(null, null, null, null))
    held.start()
    try:
        yield held, store, clock
    finally:
        await held.stop()
        os.close(null)
    assert not path.exists()


async def attach(held, token):
    """The client's half; the descriptors are closed, the connection is returned."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(str(held._path))
    try:
        for fd in await asyncio.to_thread(fdpass.receive_descriptors, connection, token):
            os.close(fd)
    except BaseException:
        connection.close()
        raise
    return connection


async def closed(store):
    async with asyncio.timeout(10):
        await store.closed.wait()
    return [call for call in store.calls if call[0] == "close"]


def test_a_socket_that_another_daemon_has_bound_meanwhile_stays(tmp_path):
    async def main():
        with socket.socket(socket.AF_UNIX) as other:
            async with running(tmp_path) as (held, _, _):
                held._path.unlink()
                other.bind(str(held._path))
                await held.stop()
                assert held._path.is_socket()
                held._path.unlink()

    asyncio.run(main())


def test_a_token_lives_ten_seconds(tmp_path):
    async def main():
        async with running(tmp_path) as (held, store, clock):
            early, late = held.grant("a", 1, ""), held.grant("b", 1, "")
            clock.advance(TOKEN_LIFE_S - 0.1)
            connection = await attach(held, early.token)
            clock.advance(0.2)
            with pytest.raises(fdpass.Refused, match="10 s"):
                await attach(held, late.token)
            assert [info.session for info in held.list()] == [early.session]
            connection.close()
            await closed(store)
            assert held.list() == ()

    asyncio.run(main())


def test_the_pid_is_the_kernels_and_groups_are_stable(tmp_path):
    async def main():
        async with running(tmp_path) as (held, store, _):
            grants = [held.grant("a", 12345, group) for group in ("engine", "engine", "", "")]
            connections = [await attach(held, grant.token) for grant in grants]
            _, groups, pids = zip(*(call[1:4] for call in store.calls), strict=True)
            assert set(pids) == {os.getpid()}
            assert groups[0] == groups[1]
            assert len(set(groups)) == 3
            for connection in connections:
                connection.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("word", "drained", "named"),
    [
        (fdpass.DRAINED, True, None),
        (b"", False, None),
        (b"\x02\x02", False, None),
        (b"?", False, None),
        (fdpass.leaving([], copies=False), True, []),
        (fdpass.leaving([], copies=True), False, []),
        (fdpass.leaving([7, 2**63], copies=False), False, [7, 2**63]),
        (fdpass.leaving(list(range(8192)), copies=True), False, list(range(8192))),
        (fdpass.leaving(list(range(8193)), copies=False), False, None),
        (b"\x03", False, None),
        (b"\x03\x02", False, None),
        (b"\x03\x00" + bytes(7), False, None),
        (b"\x03\x00" + bytes(8 * 8193), False, None),
    ],
)
def test_only_its_own_words_count(tmp_path, word, drained, named):
    async def main():
        async with running(tmp_path) as (held, store, _):
            connection = await attach(held, held.grant("a", 1, "").token)
            connection.sendall(word)
            connection.close()
            assert await closed(store) == [("close", 1, drained, named)]

    asyncio.run(main())


def test_limits_and_their_end(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)

    async def main():
        async with running(tmp_path) as (held, _, clock):
            first = held.open_plain("tool")
            held.grant("a", 1, "")
            with pytest.raises(LimitReached, match="2 sessions"):
                held.open_plain("one too many")
            held.close_plain(first)
            assert held.require_plain(held.open_plain("fits")) > first
            with pytest.raises(LimitReached):
                held.open_plain("again one too many")
            clock.advance(TOKEN_LIFE_S)  # a token nobody used does not count for ever
            held.open_plain("fits")

    asyncio.run(main())


def test_nothing_new_while_draining(tmp_path):
    async def main():
        async with running(tmp_path) as (held, _, _):
            token = held.grant("a", 1, "").token
            session = held.open_plain("tool")
            held.refuse_new()
            for call in (lambda: held.grant("a", 1, ""), lambda: held.open_plain("tool")):
                with pytest.raises(Draining):
                    call()
            with pytest.raises(fdpass.Refused):
                await attach(held, token)
            assert held.require_plain(session) == session

    asyncio.run(main())


def test_sessions_of_engines_are_not_for_tools(tmp_path):
    async def main():
        async with running(tmp_path) as (held, store, _):
            grant = held.grant("a", 1, "")
            connection = await attach(held, grant.token)
            for session in (grant.session, 0, 77):
                with pytest.raises(UnknownSession):
                    held.require_plain(session)
            connection.close()
            await closed(store)

    asyncio.run(main())


def test_names_are_printable_and_short(tmp_path):
    async def main():
        async with running(tmp_path) as (held, _, _):
            held.open_plain("\x1b[31m" + "x" * 1000)
            (info,) = held.list()
            assert info.client.startswith("?[31mx")
            assert len(info.client) == 128

    asyncio.run(main())
