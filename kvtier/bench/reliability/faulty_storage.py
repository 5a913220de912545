"""A daemon whose storage fails on demand: `kvtier serve` over a directory, with a plan of faults in a file.

    python -c 'from kvtier.bench.reliability.faulty_storage import install; install()
               from kvtier.cli.main import main; main()' PLAN serve --storage local:///DIR ...

The plan is one word, read at every call: nothing (no fault), EIO or ENOSPC (what is written, or read, fails
with it), HANG (every call waits until the word is gone).
"""

import errno
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from kvtier.io import objects

_LOOK_S: Final = 0.01
_WRITES_ONLY: Final = {"ENOSPC"}
T = TypeVar("T")


class Plan:
    """What is to go wrong now. Written by the trial, read by the daemon's threads."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def set(self, word: str) -> None:
        """Also "" to end it."""
        self._path.write_text(word)

    def apply(self, writes: bool) -> None:
        """Raise or wait, as the plan says."""
        while (word := self._word()) == "HANG":
            time.sleep(_LOOK_S)
        if word and (writes or word not in _WRITES_ONLY):
            raise OSError(getattr(errno, word), f"planned: {word}")

    def _word(self) -> str:
        return self._path.read_text() if self._path.exists() else ""


class _Writer:
    def __init__(self, plan: Plan, writer: objects.PythonWriter) -> None:
        self._plan = plan
        self._writer = writer

    def write(self, data: bytes, /) -> object:
        self._plan.apply(writes=True)
        return self._writer.write(data)

    def close(self) -> object:
        self._plan.apply(writes=True)
        return self._writer.close()

    def abort(self) -> object:
        return self._writer.abort()


class FaultyFiles:
    """A PythonFiles that does what another one does, unless the plan says otherwise."""

    def __init__(self, plan: Plan, files: objects.PythonFiles) -> None:
        self._plan = plan
        self._files = files
        self.name = files.name
        self.io_bytes_best = files.io_bytes_best

    def check_root(self) -> object:
        """Never fails by plan: a trial begins with a storage that works."""
        return self._files.check_root()

    def size(self, path: str, /) -> int:
        """As the protocol says; so are all below."""
        return self._read(lambda: self._files.size(path))

    def read(self, path: str, offset: int, bytes: int, /) -> bytes | bytearray | memoryview:
        """A range."""
        return self._read(lambda: self._files.read(path, offset, bytes))

    def read_all(self, path: str, bytes_max: int, /) -> bytes:
        """An object."""
        return self._read(lambda: self._files.read_all(path, bytes_max))

    def list(self, path: str, /) -> Iterable[tuple[str, bool]]:
        """A directory."""
        return self._read(lambda: self._files.list(path))

    def create(self, path: str, /) -> objects.PythonWriter:
        """A new object."""
        self._plan.apply(writes=True)
        return _Writer(self._plan, self._files.create(path))

    def publish(self, path: str, data: bytes, exclusive: bool, /) -> object:
        """A whole object."""
        self._plan.apply(writes=True)
        return self._files.publish(path, data, exclusive)

    def remove(self, path: str, /) -> object:
        """An object less."""
        self._plan.apply(writes=True)
        return self._files.remove(path)

    def _read(self, call: Callable[[], T]) -> T:
        self._plan.apply(writes=False)
        return call()


def install() -> None:
    """In the daemon's process, before it starts: its first argument is the plan's path."""
    plan, real = Plan(Path(sys.argv.pop(1))), objects.ObjectFiles
    objects.ObjectFiles = lambda url: FaultyFiles(plan, real(url))  # type: ignore[assignment,misc]
