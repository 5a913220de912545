"""Bad input from clients: one clear error each, nothing lost, the daemon alive after each."""

import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from harness import Daemon, key_of, keys_of, load, store

from kvtier import (
    Client,
    DaemonUnavailable,
    InvalidArgument,
    KVTierError,
    LeaseExpired,
    Namespace,
    NamespaceMismatch,
    ProtocolMismatch,
    UnknownLease,
)

CHUNK = 32 << 10
KEPT = keys_of("kept", 3)


@pytest.fixture
def ns(daemon: Daemon) -> Iterator[Namespace]:
    """A namespace with three chunks; after the test they are still there and the daemon still serves."""
    with daemon.client() as client:
        opened = client.namespace({"model": "bad input"}, CHUNK)
        store(opened, KEPT)
        yield opened
        assert load(opened, KEPT) == 3
        assert store(opened, [key_of("afterwards")]) == 1
        assert client.connected


@pytest.mark.parametrize("length", [0, 15, 65, 1000])
@pytest.mark.parametrize("call", ["lookup", "lease", "reserve", "touch"])
def test_keys_of_a_wrong_length(ns: Namespace, call: str, length: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"(?s){length}.*16.*64"):
        getattr(ns, call)([KEPT[0], bytes(length)])


@pytest.mark.parametrize(
    "keys", [["text" * 8], [None], 7, "x" * 32, np.zeros((2, 32), np.int32), np.zeros(32, np.uint8)]
)
def test_keys_that_are_none(ns: Namespace, keys: object) -> None:
    with pytest.raises(InvalidArgument):
        ns.lookup(keys)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        ns.reserve_slots(keys)  # type: ignore[arg-type]


def test_a_batch_that_is_too_large(ns: Namespace) -> None:
    many = np.zeros((70_000, 32), np.uint8)
    with pytest.raises(InvalidArgument):
        ns.reserve_slots(many)


def test_a_lease_of_unknown_keys_is_an_empty_answer(ns: Namespace) -> None:
    with ns.lease(keys_of("unknown", 2)) as read:
        assert read.keys == []
        assert len(read.views) == 0


def test_a_commit_after_abort_and_a_second_commit(ns: Namespace) -> None:
    write = ns.reserve(keys_of("over", 1))
    write.abort()
    write.abort()
    with pytest.raises(LeaseExpired, match="aborted"):
        write.commit()
    write = ns.reserve(keys_of("over", 1))
    assert write.commit()
    with pytest.raises(LeaseExpired, match="committed"):
        write.commit()


def test_a_lease_id_that_was_never_granted(daemon: Daemon, ns: Namespace) -> None:
    with daemon.control() as control:
        tool = control.open_session("bad input")
        with pytest.raises(UnknownLease, match="987654"):
            tool.release(987654)
        tool.close()


@pytest.mark.parametrize(
    ("fingerprint", "chunk_bytes", "message"),
    [
        ({}, CHUNK, "empty"),
        ({"x": float("nan")}, CHUNK, "finite"),
        ({"x": object()}, CHUNK, "object"),
        ({1: "x"}, CHUNK, "text"),
        ({"model": "new"}, 0, "chunk_bytes"),
        ({"model": "new"}, -1, "chunk_bytes"),
        ({"model": "new"}, 1.5, "chunk_bytes"),
        ({"model": "new"}, 1 << 40, "slab|chunk"),
    ],
)
def test_namespaces_that_cannot_be(
    ns: Namespace, daemon: Daemon, fingerprint: dict, chunk_bytes: int, message: str
) -> None:
    with daemon.client() as client, pytest.raises(InvalidArgument, match=message):
        client.namespace(fingerprint, chunk_bytes)


def test_another_chunk_size_for_a_known_namespace(ns: Namespace, daemon: Daemon) -> None:
    with daemon.client() as client, pytest.raises(NamespaceMismatch, match=rf"{CHUNK}.*4096|4096.*{CHUNK}"):
        client.namespace({"model": "bad input"}, 4096)


def test_a_client_of_another_protocol(ns: Namespace, daemon: Daemon) -> None:
    with daemon.control() as control, pytest.raises(ProtocolMismatch, match=r"99.*3"):
        control.attach("future", "", protocol_version=99)


@pytest.mark.parametrize("token", [b"", b"short", bytes(32), bytes(4096)])
def test_a_token_that_was_not_given_out(ns: Namespace, daemon: Daemon, token: bytes) -> None:
    with daemon.control() as control:
        path = control.attach("thief", "").session_socket
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(path)
        connection.sendall(token)
        if len(token) < 32:
            connection.shutdown(socket.SHUT_WR)
        answer, descriptors, _, _ = socket.recv_fds(connection, 1024, 8)
        assert descriptors == []
        assert answer[:1] != b"\x01"


def test_a_token_works_once(ns: Namespace, daemon: Daemon) -> None:
    from kvtier.io import fdpass

    with daemon.control() as control:
        grant = control.attach("twice", "")
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for connection in (first, second):
            connection.settimeout(10)
            connection.connect(grant.session_socket)
        import os

        for fd in fdpass.receive_descriptors(first, grant.token):
            os.close(fd)
        with pytest.raises(fdpass.Refused):
            fdpass.receive_descriptors(second, grant.token)


@pytest.mark.parametrize(
    "address", ["", "unix:relative", "unix:/" + "x" * 200, "nonsense", "host:notaport", "host:99999"]
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(InvalidArgument, match="address"):
        Client.connect(address)


def test_an_engine_at_an_address_without_shared_memory() -> None:
    with pytest.raises(InvalidArgument, match=r"address is '127\.0\.0\.1:9'.*unix:/path"):
        Client.connect("127.0.0.1:9", managed=True)


def test_nobody_at_the_address(tmp_path: object) -> None:
    with pytest.raises(DaemonUnavailable, match="nobody-here"):
        Client.connect("unix:/tmp/kvtier-nobody-here.sock", timeout_s=5)


def test_a_socket_that_is_not_kvtier(daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        path = daemon.directory / "stranger"
        stranger.bind(str(path))
        stranger.listen()
        with pytest.raises(DaemonUnavailable):
            Client.connect(f"unix:{path}", timeout_s=0.5)


def every_call(client: Client, ns: Namespace) -> list[Callable[[], object]]:
    keys = keys_of("closed", 2)
    return [
        lambda: ns.lease(keys),
        lambda: ns.reserve(keys),
        lambda: ns.touch(keys),
        ns.clear,
        client.stats,
        client.copy_engine,
        lambda: client.namespace({"model": "late"}, CHUNK),
    ]


def test_a_closed_client_says_so(daemon: Daemon) -> None:
    client = daemon.client()
    ns = client.namespace({"model": "closed"}, CHUNK)
    client.close()
    for call in every_call(client, ns):
        with pytest.raises(KVTierError, match="closed"):
            call()
    assert ns.lookup(keys_of("closed", 2)).chunks == 0
