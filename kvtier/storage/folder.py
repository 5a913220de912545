"""Directories held open, so that nothing is reached through a link or outside of what was named."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["file", "directory", "link", "other"]

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a directory."""

    name: str
    kind: Kind


class Folder:
    """An open directory. OSError as the operating system has it."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["Folder"]:
        """The directory of this path, which alone may lead over links: it is the caller's own word."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            yield cls(fd, path)
        finally:
            os.close(fd)

    @contextmanager
    def child(self, name: str) -> Iterator["Folder"]:
        """A directory in it."""
        fd = os.open(name, _READ | os.O_DIRECTORY, dir_fd=self._fd)
        try:
            yield Folder(fd, self.path / name)
        finally:
            os.close(fd)

    @contextmanager
    def file(self, name: str) -> Iterator[int]:
        """A descriptor of a file in it."""
        fd = os.open(name, _READ, dir_fd=self._fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def entries(self) -> list[Entry]:
        """What is in it, by name."""
        with os.scandir(self._fd) as found:
            entries = [Entry(entry.name, _kind(entry)) for entry in found]
        return sorted(entries, key=lambda entry: entry.name)

    def status(self, name: str) -> os.stat_result:
        """Of a name in it, links not followed."""
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def read(self, name: str, bytes_max: int) -> bytes:
        """A small file, whole; OSError when it is not a regular file, ValueError when it is larger."""
        with self.file(name) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(f"{name} is not a regular file")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise ValueError(f"has more than {bytes_max} bytes")
        return data


def _kind(entry: "os.DirEntry[str]") -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
