"""Object stores under the storage tier, through fsspec: whole sealed segments, ranged reads.

The native side (bindings/python_files.h) calls a PythonFiles from its own threads, one call per I/O. An
object is written once and whole: a segment's bytes go up in parts while it grows, and become an object when
it is sealed. Nothing is renamed; hosts do not take over each other's segments here.

Credentials come from where the store's own client looks for them (environment, instance role), never from the
configuration, and are never logged.
"""

import contextlib
import errno
import functools
import os
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.local import LocalFileSystem

PART_BYTES: Final = 16 << 20
"""What goes up at once; S3 takes at most 10 000 parts of an object."""
CONNECT_S: Final = 5
READ_S: Final = 20
TRIES: Final = 2
CALL_S: Final = 60.0
"""What all tries of one call may take: no socket's timeout ends a server that sends a byte now and then."""

P = ParamSpec("P")
R = TypeVar("R")


class PythonWriter(Protocol):
    """One object that is being written; what has not been closed is not there."""

    def write(self, data: bytes, /) -> object:
        """All of it, after what was written before."""

    def close(self) -> object:
        """Now there is an object."""

    def abort(self) -> object:
        """Give it up; there is no object."""


class PythonFiles(Protocol):
    """An object store as the storage tier uses it, from several threads at once.

    Paths are relative and their names safe. Errors are OSError with an errno; each call ends by itself within
    a minute or so, or it is a thread that hangs: nobody waits for it.
    """

    name: str
    io_bytes_best: int

    def check_root(self) -> object:
        """OSError whose words say why the root cannot be used."""

    def size(self, path: str, /) -> int:
        """ENOENT when there is no such object."""

    def read(self, path: str, offset: int, bytes: int, /) -> bytes | bytearray | memoryview:
        """That range and no more; less where the object ends before."""

    def create(self, path: str, /) -> PythonWriter:
        """EEXIST when there is one."""

    def read_all(self, path: str, bytes_max: int, /) -> bytes:
        """EFBIG when it is larger."""

    def publish(self, path: str, data: bytes, exclusive: bool, /) -> object:
        """All of it or nothing, in place of what was there; exclusive: EEXIST instead."""

    def list(self, path: str, /) -> Iterable[tuple[str, bool]]:
        """Names directly below, and whether more lies below them."""

    def remove(self, path: str, /) -> object:
        """ENOENT or nothing when there is none."""


def code_of(error: BaseException) -> int:
    """The errno that an exception of a store's client stands for."""
    for kind, code in (
        (FileNotFoundError, errno.ENOENT),
        (FileExistsError, errno.EEXIST),
        (PermissionError, errno.EACCES),
        (IsADirectoryError, errno.EISDIR),
        (NotADirectoryError, errno.ENOTDIR),
        (TimeoutError, errno.ETIMEDOUT),
        (MemoryError, errno.ENOMEM),
    ):
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError) and error.errno:
        return error.errno
    return errno.EIO


def as_os_error(call: Callable[P, R]) -> Callable[P, R]:
    """Whatever a store's client raises comes out as OSError with an errno."""

    @functools.wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            raise OSError(code_of(error), f"{type(error).__name__}: {error}") from error

    return guarded


class ObjectWriter:
    """An upload in parts. Used by one thread at a time."""

    def __init__(self, file: Any) -> None:
        self._file = file

    @as_os_error
    def write(self, data: bytes, /) -> None:
        """Goes up when a part is full."""
        self._file.write(data)

    @as_os_error
    def close(self) -> None:
        """The last part, then the object."""
        self._file.close()
        self._file.commit()

    @as_os_error
    def abort(self) -> None:
        """Nothing stays at the store. Also after a write or a close that failed."""
        try:
            self._file.discard()
        finally:
            # Or its finalizer would flush what is left, into a new upload. Some files know it by themselves.
            with contextlib.suppress(AttributeError):
                self._file.closed = True


class ObjectFiles:
    """A PythonFiles below a URL that fsspec knows."""

    io_bytes_best = 8 << 20

    def __init__(self, url: str, **storage_options: Any) -> None:
        """ValueError when the URL cannot be used; touches no network. Options are the store's client's."""
        parts = urlsplit(url)
        if not parts.scheme:
            raise ValueError(f"{url} is no URL")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                f"storage {parts.scheme}://...: credentials and options do not belong in the URL; the "
                "store's client finds them in its environment"
            )
        try:
            self._fs, root = fsspec.core.url_to_fs(
                url, **(_client_options(parts.scheme) | storage_options), skip_instance_cache=True
            )
        except ImportError as error:
            raise ValueError(f"storage {url}: {error} (for S3: pip install 'kvtier[s3]')") from None
        except Exception as error:
            raise ValueError(f"storage {url}: {type(error).__name__}: {error}") from None
        if hasattr(self._fs, "retries"):
            self._fs.retries = TRIES
        self._url = url
        self._root = root.rstrip("/")
        self.name = f"objects, {parts.scheme}"

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def check_root(self) -> None:
        """Write, read and remove a probe."""
        name = f".tmp-{os.getpid()}-{secrets.token_hex(8)}"
        try:
            self.publish(name, b"kvtier", False)
            if self.read_all(name, 6) != b"kvtier":
                raise OSError(errno.EIO, "what was written could not be read back")
            self.remove(name)
        except OSError as error:
            why = "no such bucket or directory" if error.errno == errno.ENOENT else error.strerror
            raise OSError(error.errno, f"storage root {self._url}: a probe failed: {why}") from None

    @as_os_error
    def size(self, path: str, /) -> int:
        """One request."""
        info = self._call("info", self._full(path))
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        return int(info["size"])

    @as_os_error
    def read(self, path: str, offset: int, bytes: int, /) -> bytes:
        """One ranged request."""
        data: Any = self._call("cat_file", self._full(path), start=offset, end=offset + bytes)
        return data  # type: ignore[no-any-return]

    @as_os_error
    def create(self, path: str, /) -> ObjectWriter:
        """Begins an upload; nothing is at the store yet."""
        full = self._full(path)
        if self._call("exists", full):
            raise FileExistsError(path)
        self._make_parent(full)
        return ObjectWriter(self._fs.open(full, "wb", block_size=PART_BYTES, autocommit=False))

    @as_os_error
    def read_all(self, path: str, bytes_max: int, /) -> bytes:
        """Two requests: a client may not ask for a range of nothing."""
        size = self.size(path)
        if size > bytes_max:
            raise OSError(errno.EFBIG, path)
        return self.read(path, 0, size) if size else b""

    @as_os_error
    def publish(self, path: str, data: bytes, exclusive: bool, /) -> None:
        """Atomic at the store. Exclusive where its client can (S3, GCS), else a check before."""
        full = self._full(path)
        self._make_parent(full)
        if exclusive and self._call("exists", full):
            raise FileExistsError(path)
        if not exclusive:
            self._call("pipe_file", full, data)
            return
        try:
            self._call("pipe_file", full, data, mode="create")
        except Exception:
            # Clients say in many ways that somebody was first. It is there now: so it was.
            if self._call("exists", full):
                raise FileExistsError(path) from None
            raise

    @as_os_error
    def list(self, path: str, /) -> list[tuple[str, bool]]:
        """Nothing below is ENOENT, as at the root of an empty bucket."""
        full = self._full(path)
        rows = []
        for entry in self._call("ls", full, detail=True, refresh=True):
            name = entry["name"].rstrip("/")
            if name == full.lstrip("/") or name == full:
                if entry["type"] != "directory" and path:
                    raise NotADirectoryError(path)
                continue  # a marker of the directory itself
            rows.append((name.rsplit("/", 1)[-1], entry["type"] == "directory"))
        return rows

    @as_os_error
    def remove(self, path: str, /) -> None:
        """One request."""
        self._call("rm_file", self._full(path))

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The client's method of this name; TimeoutError after CALL_S where the client can be left."""
        if isinstance(self._fs, AsyncFileSystem):
            return sync(self._fs.loop, getattr(self._fs, f"_{name}"), *args, timeout=CALL_S, **kwargs)
        return getattr(self._fs, name)(*args, **kwargs)

    def _make_parent(self, full: str) -> None:
        """Object stores have no directories; a mounted one, or a test's, may."""
        if isinstance(self._fs, LocalFileSystem):
            self._fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)


def _client_options(scheme: str) -> dict[str, Any]:
    """Every call ends within some seconds, and no listing is from a cache."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme in ("s3", "s3a"):
        options["config_kwargs"] = {
            "connect_timeout": CONNECT_S,
            "read_timeout": READ_S,
            "retries": {"max_attempts": 1},
        }
    return options
