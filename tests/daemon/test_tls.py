"""TLS of a TCP address: both sides show a certificate, and whoever has none gets nothing."""

import os
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import kvtier.wire._gen.kvtier_pb2 as pb
import kvtier.wire._gen.kvtier_pb2_grpc as pb_grpc
import pytest
import trustme
from harness import Daemon
from test_life import assert_refused, serve

from kvtier.client.channel import ControlChannel
from kvtier.demo.daemon import temporary_paths
from kvtier.errors import ConfigError, DaemonUnavailable, InvalidArgument


class Authority:
    """Signs certificates and writes what one side needs into a directory of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory / name
        self._directory.mkdir()
        self._ca = trustme.CA()
        self.ca = self._directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, identity: str) -> dict[str, str]:
        """The three files, by the names of their environment variables."""
        leaf = self._ca.issue_cert(identity)
        cert, key = self._directory / f"{identity}.pem", self._directory / f"{identity}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        key.touch(0o600)
        leaf.private_key_pem.write_to_path(key)
        return {"KVTIER_TLS_CERT": str(cert), "KVTIER_TLS_KEY": str(key), "KVTIER_TLS_CA": str(self.ca)}


@pytest.fixture
def paths():
    with temporary_paths() as made:
        yield made


@pytest.fixture(autouse=True)
def no_tls(monkeypatch):
    for name in ("CERT", "KEY", "CA"):
        monkeypatch.delenv(f"KVTIER_TLS_{name}", raising=False)


def flags(files):
    return [
        part for name, path in files.items() for part in (f"--{name[7:].lower().replace('_', '-')}", path)
    ]


def use(monkeypatch, files):
    for name in ("CERT", "KEY", "CA"):
        monkeypatch.delenv(f"KVTIER_TLS_{name}", raising=False)
    for name, path in files.items():
        monkeypatch.setenv(name, path)


@contextmanager
def serving(paths, files, monkeypatch, *, clients=None, name="127.0.0.1"):
    """A daemon with these files on a port of its own, and its address by that name. What the clients of its
    start and its stop use is `clients`, or the same files."""
    clients = clients or files
    directory, shm_dir = paths
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    daemon = Daemon(directory, dram="8MiB", shm_dir=shm_dir, options=flags(files))
    daemon.command[daemon.command.index(daemon.address)] = daemon.address = address
    daemon.address = address.replace("127.0.0.1", name)
    use(monkeypatch, clients)
    with daemon:
        yield daemon
    assert daemon.process.returncode == 0, daemon.log()


def answers(address):
    with ControlChannel(address, timeout_s=10.0) as control:
        control.list_sessions()


def test_both_sides_show_a_certificate(paths, monkeypatch):
    fleet = Authority(paths[0], "fleet")
    with serving(paths, fleet.issue("127.0.0.1"), monkeypatch) as daemon:
        use(monkeypatch, fleet.issue("tool"))
        answers(daemon.address)
        assert "any user of this host can reach" not in daemon.log()
        command = [sys.executable, "-m", "kvtier.cli.main", "ls", "--address", daemon.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "PRIVATE KEY" not in daemon.log()


def test_who_shows_none_or_a_stranger_s_is_refused(paths, monkeypatch):
    fleet, strangers = Authority(paths[0], "fleet"), Authority(paths[0], "strangers")
    theirs = strangers.issue("127.0.0.1")
    with serving(paths, fleet.issue("127.0.0.1"), monkeypatch) as daemon:
        use(monkeypatch, {"KVTIER_TLS_CA": str(fleet.ca)})  # believes the daemon, shows nothing
        with pytest.raises(DaemonUnavailable):
            answers(daemon.address)
        use(monkeypatch, theirs | {"KVTIER_TLS_CA": str(fleet.ca)})
        with pytest.raises(DaemonUnavailable):
            answers(daemon.address)
        with closing(grpc.insecure_channel(daemon.address)) as plain, pytest.raises(grpc.RpcError) as error:
            pb_grpc.ControlStub(plain).ListSessions(pb.ListSessionsRequest(), timeout=10)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_client_does_not_believe_a_stranger_s_daemon(paths, monkeypatch):
    fleet, strangers = Authority(paths[0], "fleet"), Authority(paths[0], "strangers")
    with serving(paths, strangers.issue("127.0.0.1"), monkeypatch) as daemon:
        use(monkeypatch, strangers.issue("tool") | {"KVTIER_TLS_CA": str(fleet.ca)})
        with pytest.raises(DaemonUnavailable):
            answers(daemon.address)


def test_a_certificate_for_another_name_is_not_believed(paths, monkeypatch):
    fleet = Authority(paths[0], "fleet")
    with serving(paths, fleet.issue("localhost"), monkeypatch, name="localhost") as daemon:
        answers(daemon.address)
        with pytest.raises(DaemonUnavailable):
            answers(daemon.address.replace("localhost", "127.0.0.1"))


def test_without_an_authority_the_daemon_asks_nobody(paths, monkeypatch):
    fleet = Authority(paths[0], "fleet")
    files = fleet.issue("127.0.0.1")
    believes = {"KVTIER_TLS_CA": files.pop("KVTIER_TLS_CA")}
    with serving(paths, files, monkeypatch, clients=believes) as daemon:
        answers(daemon.address)
        assert "any user of this host can reach" in daemon.log()


def test_beyond_this_host_it_takes_all_three(paths):
    files = Authority(paths[0], "fleet").issue("0.0.0.0")
    for missing in files:
        some = {name: path for name, path in files.items() if name != missing}
        done = serve(paths, "--address", "0.0.0.0:9", *flags(some))
        assert_refused(done, "0.0.0.0:9", "tls_ca", "loopback")


def test_a_key_that_others_can_read_is_refused(paths):
    files = Authority(paths[0], "fleet").issue("127.0.0.1")
    os.chmod(files["KVTIER_TLS_KEY"], 0o640)
    done = serve(paths, "--address", "127.0.0.1:9", *flags(files))
    assert_refused(done, "tls_key", "open to others", "0600")


def test_files_that_are_none_are_refused_by_name(paths):
    files = Authority(paths[0], "fleet").issue("127.0.0.1")
    other = Authority(paths[0], "other").issue("127.0.0.1")
    empty = paths[0] / "empty"
    empty.touch(0o600)
    for name in files:
        assert_refused(
            serve(paths, "--address", "127.0.0.1:9", *flags(files | {name: str(empty)})),
            name[7:].lower(),
            "PEM",
        )
        missing = flags(files | {name: "/nowhere/file.pem"})
        assert_refused(serve(paths, "--address", "127.0.0.1:9", *missing), name[7:].lower(), "cannot be read")
    mixed = flags(files | {"KVTIER_TLS_KEY": other["KVTIER_TLS_KEY"]})
    assert_refused(serve(paths, "--address", "127.0.0.1:9", *mixed), "tls_cert", "tls_key")
    del files["KVTIER_TLS_KEY"]
    assert_refused(serve(paths, "--address", "127.0.0.1:9", *flags(files)), "tls_key is not")


def test_a_client_does_not_speak_plainly_beyond_this_host(paths, monkeypatch):
    with pytest.raises(InvalidArgument, match="KVTIER_TLS_CA"):
        ControlChannel("192.0.2.1:9400")
    files = Authority(paths[0], "fleet").issue("tool")
    del files["KVTIER_TLS_KEY"]
    use(monkeypatch, files)
    with pytest.raises(ConfigError, match="tls_key is not"):
        ControlChannel("192.0.2.1:9400")
    ControlChannel("unix:/run/kvtier/none.sock").close()  # none of it is of a Unix socket's concern
