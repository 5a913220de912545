"""Files that hold a secret: read once, refused where others could read them too."""

import os
import stat
from pathlib import Path
from typing import Final

from kvtier.errors import ConfigError, InvalidArgument
from kvtier.format.seal import parse_key

_BYTES_MAX: Final = 1 << 20


def read_file(field: str, path: Path) -> bytes:
    """All of a small file; ConfigError names the field and the path, never what is in it."""
    return _read(field, path, private=False)


def read_secret(field: str, path: Path) -> bytes:
    """The same, of a file that is this user's (or root's) and closed to everybody else: 0600 or 0400."""
    return _read(field, path, private=True)


def seal_key(path: str) -> bytes:
    """The storage root's key in this file; empty for no path. ConfigError when it holds none."""
    if not path:
        return b""
    try:
        return parse_key(read_secret("storage_key", Path(path)))
    except ConfigError:
        raise
    except InvalidArgument as error:
        raise ConfigError(f"storage_key = '{path}' {error}") from None


def _read(field: str, path: Path, *, private: bool) -> bytes:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())  # of what is read, whatever the name leads to by then
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{field} = '{path}' is not a file")
            if private and status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise ConfigError(f"{field} = '{path}' is open to others (mode {mode:04o}); it must be 0600")
            if private and status.st_uid not in (os.geteuid(), 0):
                raise ConfigError(f"{field} = '{path}' belongs to uid {status.st_uid}, not to this user")
            content = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{field} = '{path}' cannot be read: {error.strerror}") from None
    if len(content) > _BYTES_MAX:
        raise ConfigError(f"{field} = '{path}' is larger than 1MiB")
    return content
