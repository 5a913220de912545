"""The handshake: who gets descriptors, and what comes of those who should not."""

import fcntl
import os
import socket
import subprocess
import sys
from contextlib import closing

import pytest
from harness import until

from kvtier import ProtocolMismatch
from kvtier.daemon.sessions import PENDING_MAX, STRANGERS_MAX
from kvtier.errors import LimitReached
from kvtier.io import fdpass


@pytest.fixture
def control(daemon):
    with closing(daemon.control()) as channel:
        yield channel


def connect(grant):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(grant.session_socket)
    return connection


def refusal(grant, sent):
    """What the daemon says to these bytes."""
    with connect(grant) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer, fds, _, _ = socket.recv_fds(connection, 600, fdpass.DESCRIPTORS)
        assert answer[:1] == fdpass.REFUSED
        assert fds == []
        return answer[1:].decode()


def test_descriptors_are_what_they_should_be(daemon, control):
    grant = control.attach("test", "")
    with connect(grant) as connection:
        fds = fdpass.receive_descriptors(connection, grant.token)
        data_fd, meta_fd, ring_fd, doorbell_fd, catalog_fd = fds
        try:
            assert not any(os.get_inheritable(fd) for fd in fds)
            access = [fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE for fd in fds]
            assert access == [os.O_RDWR, os.O_RDONLY, os.O_RDWR, os.O_RDWR, os.O_RDONLY]
            for fd in (meta_fd, catalog_fd):
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.pwrite(fd, b"x", 0)
            for fd in (ring_fd, doorbell_fd):  # a peer that shrinks these would make the daemon fault
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, 0)
            assert os.fstat(data_fd).st_size == 64 << 20
            sessions = daemon.stats().sessions
            assert [(item.session, item.client, item.pid) for item in sessions] == [
                (grant.session, "test", os.getpid())
            ]
        finally:
            for fd in fds:
                os.close(fd)
    until(lambda: not daemon.stats().sessions, "the end of the session was seen")


def test_a_token_works_once(control):
    grant = control.attach("test", "")
    with connect(grant) as connection:
        fds = fdpass.receive_descriptors(connection, grant.token)
        assert "used" in refusal(grant, grant.token)
        for fd in fds:
            os.close(fd)


def test_garbage_and_silence_get_nothing(daemon, control):
    grant = control.attach("test", "")
    for sent in (b"", b"x", bytes(32), grant.token[:31], b"GET / HTTP/1.1\r\n\r\n" * 100):
        assert "token" in refusal(grant, sent)
    with connect(grant) as silent, pytest.raises(fdpass.Refused, match="token"):
        fdpass.receive_descriptors(silent, b"")  # never says anything: told so after two seconds
    assert daemon.stats().sessions == ()
    with connect(grant) as connection:  # the daemon is alive, and the token still unused
        for fd in fdpass.receive_descriptors(connection, grant.token):
            os.close(fd)


def test_refused_tokens_are_logged_but_never_shown(daemon, control):
    grant = control.attach("test", "")
    refusal(grant, b"\xee" * 32)
    log = daemon.log()
    assert '"event": "attach refused"' in log
    assert grant.token.hex() not in log
    assert "ee" * 32 not in log


def test_strangers_do_not_keep_others_out(daemon, control):
    grant = control.attach("test", "")
    strangers = [connect(grant) for _ in range(STRANGERS_MAX + 6)]
    try:
        until(lambda: sum(closed(stranger) for stranger in strangers) >= 6, "the surplus is sent away")
    finally:
        for stranger in strangers:
            stranger.close()
    with daemon.client() as client:
        assert client.stats()["sessions"]


def closed(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_session_that_says_a_word_not_in_the_protocol_ends(daemon, control):
    grant = control.attach("test", "")
    with connect(grant) as connection:
        for fd in fdpass.receive_descriptors(connection, grant.token):
            os.close(fd)
        connection.sendall(b"hello")
        until(lambda: closed(connection), "the connection ends")
    assert daemon.stats().sessions == ()


def test_another_protocol_version_is_refused_with_both(control):
    with pytest.raises(ProtocolMismatch, match="version 99, this daemon 3"):
        control.attach("test", "", protocol_version=99)


def test_pending_attaches_are_bounded(control):
    for _ in range(PENDING_MAX):
        control.attach("test", "")
    with pytest.raises(LimitReached, match="64 attaches are pending"):
        control.attach("test", "")
    assert control.daemon_stats().sessions == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_nothing_even_where_the_mode_would_allow_it(daemon, control):
    grant = control.attach("test", "")
    os.chmod(daemon.directory, 0o755)
    os.chmod(grant.session_socket, 0o666)
    code = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(sys.argv[1])\n"
        "print(s.recv(200))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, grant.session_socket],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert "uid 65534 may not attach; uid 0 may" in done.stdout, done.stderr
    assert daemon.stats().sessions == ()
