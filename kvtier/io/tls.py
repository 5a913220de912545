"""TLS of the control address, on both sides: three PEM files, of the same meaning to daemon and client.

`tls_cert` and `tls_key` are what this side shows, `tls_ca` is whom it believes. A daemon with `tls_ca` wants
a certificate of every client; a client without `tls_ca` uses no TLS.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvtier.errors import ConfigError
from kvtier.io.secret_file import read_file, read_secret


@dataclass(frozen=True, slots=True)
class Tls:
    """The files' contents; empty where there is none."""

    cert: bytes
    key: bytes
    ca: bytes

    def __repr__(self) -> str:
        return "Tls(...)"  # no key in a traceback or a log


def read_tls(cert: str, key: str, ca: str) -> Tls | None:
    """None when no file is named. ConfigError when one cannot be used, or one of a pair is missing."""
    if bool(cert) != bool(key):
        missing, given = ("tls_key", "tls_cert") if cert else ("tls_cert", "tls_key")
        raise ConfigError(f"{given} is set and {missing} is not: a certificate and its key go together")
    if not (cert or ca):
        return None
    return Tls(
        cert=_pem("tls_cert", cert, read_file("tls_cert", Path(cert))) if cert else b"",
        key=_pem("tls_key", key, read_secret("tls_key", Path(key))) if key else b"",
        ca=_pem("tls_ca", ca, read_file("tls_ca", Path(ca))) if ca else b"",
    )


def client_tls(env: Mapping[str, str] | None = None) -> Tls | None:
    """As KVTIER_TLS_CA, KVTIER_TLS_CERT and KVTIER_TLS_KEY say; None without a CA."""
    env = os.environ if env is None else env
    cert, key, ca = (env.get(f"KVTIER_TLS_{name}", "") for name in ("CERT", "KEY", "CA"))
    return read_tls(cert, key, ca) if ca else None


def _pem(field: str, path: str, content: bytes) -> bytes:
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{field} = {path!r} is not a PEM file")
    return content
