"""Claiming an address: the lock beside the socket, what a dead daemon left at its path, and whether the names
are still there: people and cleaners of temporary files remove them under a serving daemon.
"""

import os
import socket
import stat
from pathlib import Path

from kvtier.address import Address, runtime_dir
from kvtier.errors import AlreadyServing, ConfigError
from kvtier.io.access import Access
from kvtier.io.lockfile import HeldElsewhere, LockFile
from kvtier.io.shm import private_dir


class Claim:
    """The right to listen on an address. Holds the lock until `release`; the sockets are then gone."""

    def __init__(self, address: Address, group: str = "") -> None:
        """AlreadyServing when another daemon has it, ConfigError when the path cannot be used."""
        self.address = address
        self.access = Access(group)
        base = address.path or runtime_dir() / f"{address.host}-{address.port}"
        self.session_path = base.with_name(base.name + ".session")
        self._lock_path = base.with_name(base.name + ".lock")
        self._make_directory()
        self._noted: dict[Path, tuple[int, int]] = {}
        self._paths = [self.session_path, *([address.path] if address.path else [])]
        self._lock = self._take_lock()
        try:
            for path in self._paths:
                _remove_stale(path, address)
        except BaseException:
            self._lock.release()
            raise

    def note(self) -> None:
        """The names are there now, all of them ours."""
        self._noted = {path: _identity(path) for path in (*self._paths, self._lock_path)}

    def lost(self) -> bool:
        """A name that was noted is gone, or is another's."""
        return any(_identity(path) != noted for path, noted in self._noted.items())

    def renew(self) -> None:
        """Make the directory and the lock anew where they are gone; then the paths may be bound again.

        AlreadyServing when another daemon has come in between, ConfigError when a path is something else's.
        """
        self._make_directory()
        for path in self._paths:
            _refuse_other(path, self.address)
        if _identity(self._lock_path) != self._noted[self._lock_path]:
            former, self._lock = self._lock, self._take_lock()
            former.forget()
            # At once: what fails behind it is tried again, and this one must not be taken for another's then.
            self._noted[self._lock_path] = _identity(self._lock_path)

    def place(self, bound: Path) -> None:
        """Give the socket that was bound as `bound` the address, instead of whatever socket has it.

        ConfigError when something else has it.
        """
        if self.address.path is not None:
            _refuse_other(self.address.path, self.address)
            bound.replace(self.address.path)

    def _make_directory(self) -> None:
        """One that others share, such as /tmp, is taken as it is."""
        directory = self._lock_path.parent
        if not directory.is_dir() or directory == runtime_dir():
            private_dir(directory, "address")
            self.access.open_directory(directory)

    def _take_lock(self) -> LockFile:
        try:
            return LockFile(self._lock_path)
        except HeldElsewhere as error:
            raise AlreadyServing(
                f"address = '{self.address}' is served by another kvtier daemon ({error.holder})"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"address = '{self.address}': its directory cannot be written to: {error.strerror}"
            ) from None

    def release(self) -> None:
        """Remove the sockets, unless another daemon has the address now; let go of the lock. Idempotent.

        What others have put in their place stays.
        """
        if not self._lock.taken_over():
            for path in self._paths:
                if not _is_other(path):
                    path.unlink(missing_ok=True)
        self._lock.release()


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _is_other(path: Path) -> bool:
    """Somebody has put something there that is no socket."""
    try:
        return not stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _refuse_other(path: Path, address: Address) -> None:
    if _is_other(path):
        raise ConfigError(f"address = '{address}': {path} exists and is not a socket")


def _remove_stale(path: Path, address: Address) -> None:
    _refuse_other(path, address)
    if not os.path.lexists(path):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(f"address = '{address}': {path} cannot be taken over: {error}") from None
    raise AlreadyServing(f"address = '{address}': another process listens on {path}")
