"""A lock between processes: an flock on a file that says who holds it. It ends with the process."""

import fcntl
import os
from pathlib import Path
from types import TracebackType


class HeldElsewhere(Exception):
    """Another process has the lock; `holder` is what it wrote into the file, e.g. its pid."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by {holder or 'another process'}")
        self.path = path
        self.holder = holder


class LockFile:
    """Taken at construction (OSError, HeldElsewhere), given back by `release` together with the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 256, 0).decode(errors="replace").strip()
                os.close(fd)
                raise HeldElsewhere(path, holder) from None
            # The former holder may have removed the file between our open and our lock.
            if _same_file(fd, path):
                break
            os.close(fd)
        self._fd: int | None = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Remove the file and let go. Idempotent."""
        if self._fd is None:
            return
        if not self.taken_over():
            self._path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = None

    def taken_over(self) -> bool:
        """The file was removed, and another holder's has its name now."""
        return os.path.lexists(self._path) and (self._fd is None or not _same_file(self._fd, self._path))

    def forget(self) -> None:
        """Let go of a lock whose file was removed; what has its name now is another's. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def hold_to_the_end(self) -> None:
        """Only the end of the process, all of its threads, lets go of it; `release` does nothing any more."""
        self._fd = None

    def __enter__(self) -> "LockFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
