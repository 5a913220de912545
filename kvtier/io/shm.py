"""The arena's files: `arena.data` (payload) and `arena.meta` (index), under the flock `arena.lock`.

1. `private_dir` makes or checks the directory: ours, 0700.
2. `ArenaFiles` takes the lock; a second daemon fails here, before it touches anything. The lock is held until
   the last thread of a killed daemon has ended. Reads that the kernel had begun for it may still land.
3. What an earlier daemon left behind is opened. Whether it can be kept is the native store's to say.
4. If not, `make_anew` removes it and makes both files, exclusively, 0600: engines that still map the former
   ones hold files without a name, and find out by the end of their connection.
5. `close` gives the lock back. The files stay for the next daemon, unless they were made anew and never
   served (`settle`), or are to be gone (`remove`). After `hold_to_the_end` the lock outlives it: a thread of
   this process may still write into the arena.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
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
        self._unsettled = False
        self.found_bytes = 0
        """Memory of what an earlier daemon has left behind."""
        try:
            self.unfit = self._open(os.O_RDWR) if any(map(_exists, self._paths())) else "there is none"
            """Why these files can be nobody's arena, in words; empty: both are open."""
        except BaseException:
            self.close()
            raise

    def make_anew(self) -> None:
        """Remove what is there, and make both files."""
        self.remove()
        self._unsettled = True
        if reason := self._open(os.O_RDWR | os.O_CREAT | os.O_EXCL):
            raise ConfigError(f"shm_dir = {str(self._directory)!r}: {reason}")

    def settle(self) -> None:
        """They are an arena that serves: from now on they outlive this object."""
        self._unsettled = False

    def remove(self) -> None:
        """The files are gone; their memory is, as soon as no engine maps them any more."""
        self._close_fds()
        for path in self._paths():
            path.unlink(missing_ok=True)

    def hold_to_the_end(self) -> None:
        """Nobody else gets the arena before this process has ended: `close` keeps the lock."""
        self._lock.hold_to_the_end()

    def close(self) -> int:
        """Give the lock back; how many bytes of memory stay. Idempotent."""
        if self._unsettled:
            self.remove()
            self._unsettled = False
        left_bytes = sum(os.fstat(fd).st_blocks * 512 for fd in self._open_fds[:2])
        self._close_fds()
        self._lock.release()
        return left_bytes

    def _paths(self) -> tuple[Path, ...]:
        return tuple(self._directory / name for name in _NAMES)

    def _close_fds(self) -> None:
        while self._open_fds:
            os.close(self._open_fds.pop())

    def _open(self, flags: int) -> str:
        fds = []
        for path in self._paths():
            try:
                fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                return f"{path.name} cannot be opened: {error.strerror}"
            self._open_fds.append(fd)
            fds.append(fd)
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                return f"{path.name} is not a file of one name"
            self.found_bytes += 0 if self._unsettled else status.st_blocks * 512
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                return f"{path.name} has mode {stat.S_IMODE(status.st_mode):04o} and uid {status.st_uid}"
        self.data_fd, self.meta_fd = fds
        self.meta_read_only_fd = os.open(self._paths()[1], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._open_fds.append(self.meta_read_only_fd)
        return ""


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[tuple[int, int]]:
    """Descriptors of an arena's files, payload first, for reading only. OSError."""
    with contextlib.ExitStack() as stack:
        fds = []
        for name in _NAMES:
            fds.append(os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
            stack.callback(os.close, fds[-1])
        yield fds[0], fds[1]


def memfd(name: str) -> int:
    """A nameless empty file; the native store sizes and seals it, so that no peer can shrink it under us."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def read_only(fd: int) -> int:
    """Another descriptor of the same file, for reading only; the caller owns it."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def _exists(path: Path) -> bool:
    return os.path.lexists(path)
