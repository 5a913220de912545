import os

import pytest

from kvtier.address import SOCKET_PATH_BYTES_MAX, default_address, parse_address, runtime_dir
from kvtier.errors import InvalidArgument


def test_unix_addresses():
    address = parse_address("unix:/run/kvtier/kvtier.sock")
    assert str(address.path) == "/run/kvtier/kvtier.sock"
    assert address.is_loopback
    assert str(address) == address.grpc_target == "unix:/run/kvtier/kvtier.sock"
    assert str(parse_address("unix:///run/a.sock")) == "unix:/run/a.sock"


def test_grpc_gets_paths_percent_encoded():
    assert parse_address("unix:/tmp/a b%20").grpc_target == "unix:/tmp/a%20b%2520"


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051, True),
        ("[::1]:1", "::1", 1, True),
        ("localhost:9", "localhost", 9, True),
        ("0.0.0.0:9", "0.0.0.0", 9, False),
        ("[::]:9", "::", 9, False),
        ("node7:9", "node7", 9, False),
    ],
)
def test_tcp_addresses(text, host, port, loopback):
    address = parse_address(text)
    assert (address.host, address.port, address.is_loopback) == (host, port, loopback)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "unix:", "unix:relative", "unix:/a\0b", "host", "host:", ":1", "::1:5", "h:70000", "h:-1", "h:x"],
)
def test_what_is_no_address(text):
    with pytest.raises(InvalidArgument, match="address is"):
        parse_address(text)


def test_the_session_socket_must_fit_too():
    longest = "/" + "a" * (SOCKET_PATH_BYTES_MAX - 1)
    assert parse_address(f"unix:{longest}").path is not None
    with pytest.raises(InvalidArgument, match="has 100 bytes and may have 99"):
        parse_address(f"unix:{longest}a")


def test_the_default_is_this_users_socket(monkeypatch):
    assert default_address({"KVTIER_ADDRESS": "unix:/x"}) == "unix:/x"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_address({"XDG_RUNTIME_DIR": "/run/user/0"}) == "unix:/run/kvtier/kvtier.sock"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert str(runtime_dir({"XDG_RUNTIME_DIR": "/run/user/1000"})) == "/run/user/1000/kvtier"
    assert str(runtime_dir({})) == "/tmp/kvtier-1000"
    assert str(runtime_dir({"XDG_RUNTIME_DIR": "relative"})) == "/tmp/kvtier-1000"
