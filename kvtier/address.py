"""Where a daemon listens: `unix:/path` or `host:port`, and the defaults that daemon and clients share."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from kvtier.errors import InvalidArgument

SOCKET_PATH_BYTES_MAX: Final = 107 - len(".session")
"""A Unix socket's path ends after 107 bytes, and the session socket's name is longer by its suffix."""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address: either `path`, or `host` and `port`."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def grpc_target(self) -> str:
        """As gRPC wants it (it decodes percent signs in paths)."""
        return f"unix:{quote(str(self.path))}" if self.path is not None else str(self)

    @property
    def is_loopback(self) -> bool:
        """True when only this host can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """InvalidArgument says what is allowed."""
    if text.startswith("unix:"):
        name = text.removeprefix("unix:")
        if name.startswith("//"):
            name = "/" + name.lstrip("/")
        if not name.startswith("/") or "\0" in name:
            raise InvalidArgument(f"address is {text!r}; after unix: an absolute path is wanted")
        length = len(os.fsencode(name))
        if length > SOCKET_PATH_BYTES_MAX:
            raise InvalidArgument(
                f"address is {text!r}; its path has {length} bytes and may have {SOCKET_PATH_BYTES_MAX}"
            )
        return Address(path=Path(name))
    host, port = parse_host_port(text, "address", "unix:/path or host:port")
    return Address(host=host, port=port)


def parse_host_port(text: str, field: str, wanted: str = "host:port") -> tuple[str, int]:
    """('127.0.0.1', 9400) of '127.0.0.1:9400'; IPv6 hosts stand in brackets."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host) or not (port.isascii() and port.isdigit()):
        raise InvalidArgument(f"{field} is {text!r}; {wanted} is wanted")
    if int(port) > 65535:
        raise InvalidArgument(f"{field} is {text!r}; the port must be 0 to 65535")
    return bare, int(port)


def runtime_dir(env: Mapping[str, str] | None = None) -> Path:
    """This user's sockets: in /run/kvtier for root, else $XDG_RUNTIME_DIR/kvtier or /tmp/kvtier-UID."""
    env = os.environ if env is None else env
    if os.geteuid() == 0:
        return Path("/run/kvtier")
    if env.get("XDG_RUNTIME_DIR", "").startswith("/"):
        return Path(env["XDG_RUNTIME_DIR"], "kvtier")
    return Path(f"/tmp/kvtier-{os.geteuid()}")  # noqa: S108 - made 0700 and its owner is checked


def default_address(env: Mapping[str, str] | None = None) -> str:
    """KVTIER_ADDRESS, else this user's socket."""
    env = os.environ if env is None else env
    return env.get("KVTIER_ADDRESS") or f"unix:{runtime_dir(env)}/kvtier.sock"
