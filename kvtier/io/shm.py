"""The arena's files: `arena.data` (payload) and `arena.meta` (index), under the flock `arena.lock`.

1. `private_dir` makes or checks the directory: ours, 0700.
2. `ArenaFiles` takes the lock; a second daemon fails here, before it touches anything.
3. What an earlier daemon left behind is removed: its engines hold descriptors of files without a name then
   and find out by the boot id.
4. Both files are made anew, exclusively, 0600. `close` removes them, then the lock.
"""

import os
import stat
from pathlib import Path
from typing import Final

from kvtier.errors import AlreadyServing, ConfigError
from kvtier.io.lockfile import HeldElsewhere, LockFile

_NAMES: Final = ("arena.data", "arena.meta")


def private_dir(directory: Path, field: str) -> None:
    """Make `directory` (0700), or check that it is ours alone. ConfigError names `field`."""

    def refuse(reason: str) -> ConfigError:
        return ConfigError(f"{field} = {str(directory)!r} {reason}")

    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat(follow_symlinks=False)
    except FileExistsError:
        raise refuse("is not a directory") from None
    except OSError as error:
        raise refuse(f"cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise refuse("is not a directory")
    if status.st_uid != os.geteuid():
        raise refuse(f"belongs to uid {status.st_uid}; it must belong to uid {os.geteuid()}")
    if status.st_mode & 0o022:
        raise refuse(f"has mode {stat.S_IMODE(status.st_mode):04o}; nobody else may write to it (0700)")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise refuse("cannot be written to")


class ArenaFiles:
    """The open files of one arena. Descriptors belong to this object; sizes are set by the native store."""

    def __init__(self, directory: Path) -> None:
        private_dir(directory, "shm_dir")
        self._directory = directory
        try:
            self._lock = LockFile(directory / "arena.lock")
        except HeldElsewhere as error:
            raise AlreadyServing(
                f"shm_dir = {str(directory)!r} is in use by another kvtier daemon ({error.holder})"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"shm_dir = {str(directory)!r} cannot be written to: {error.strerror}"
            ) from None
        self._open_fds: list[int] = []
        try:
            self.leftover_bytes = sum(_remove(directory / name) for name in _NAMES)
            """What an earlier daemon had left behind, removed now."""
            self.data_fd, self.meta_fd = (self._create(directory / name) for name in _NAMES)
            self.meta_read_only_fd = os.open(directory / "arena.meta", os.O_RDONLY | os.O_CLOEXEC)
            self._open_fds.append(self.meta_read_only_fd)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the files, then give the lock back. Idempotent."""
        for name in _NAMES:
            (self._directory / name).unlink(missing_ok=True)
        while self._open_fds:
            os.close(self._open_fds.pop())
        self._lock.release()

    def _create(self, path: Path) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._open_fds.append(fd)
        return fd


def memfd(name: str) -> int:
    """A nameless empty file; the native store sizes and seals it, so that no peer can shrink it under us."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def read_only(fd: int) -> int:
    """Another descriptor of the same file, for reading only; the caller owns it."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def _remove(path: Path) -> int:
    try:
        size_bytes = path.stat(follow_symlinks=False).st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size_bytes
