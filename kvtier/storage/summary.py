"""What a root holds, by its indexes: quick, for `kvtier ls --storage`. Nothing is checked against records."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtier.errors import InvalidArgument
from kvtier.format.storage import (
    MARKER_BYTES_MAX,
    MARKER_NAME,
    META_BYTES_MAX,
    META_NAME,
    parse_marker,
    parse_meta,
)
from kvtier.io.native import read_index, read_lease
from kvtier.storage.findings import Report
from kvtier.storage.folder import Folder
from kvtier.storage.hosts import sort_out
from kvtier.storage.names import (
    HOSTS_NAME,
    LEASE_NAME,
    TAIL_NAME,
    VERSION_NAME,
    HostName,
    index_name,
    parse_epoch,
    parse_host,
    parse_id,
    segment_name,
)


@dataclass(slots=True)
class HostSummary:
    """One host's directory in one namespace."""

    host: str
    adopted_by: str = ""
    segments: int = 0
    records: int = 0
    bytes: int = 0
    lease: str = ""  # "held", "left", "none", "damaged"
    lease_age_s: float | None = None  # by this machine's clock, which nobody else goes by


@dataclass(slots=True)
class NamespaceSummary:
    """One namespace of a root."""

    id: str
    fingerprint: dict[str, Any] = field(default_factory=dict)
    chunk_bytes: int = 0
    epoch: int = 0
    fault: str = ""  # of its meta.json
    hosts: list[HostSummary] = field(default_factory=list)

    def total(self, what: str) -> int:
        """Of all its hosts: segments, records or bytes."""
        return sum(getattr(host, what) for host in self.hosts)


def summarize(root: Path) -> list[NamespaceSummary]:
    """The namespaces of a root; InvalidArgument when it is none that this version reads."""
    try:
        with Folder.open(root) as folder:
            names = {entry.name: entry.kind for entry in folder.entries()}
            if names.get(MARKER_NAME) != "file":
                raise InvalidArgument(f"{root} is no storage root: {MARKER_NAME} is missing")
            _read_marker(folder)
            if names.get(VERSION_NAME) != "directory":
                return []
            with folder.child(VERSION_NAME) as version:
                return list(_namespaces(version))
    except OSError as error:
        raise InvalidArgument(f"{root}: {error.strerror or error}") from error


def _read_marker(folder: Folder) -> None:
    try:
        parse_marker(folder.read(MARKER_NAME, MARKER_BYTES_MAX).decode())
    except ValueError as error:
        raise InvalidArgument(f"{folder.path / MARKER_NAME}: {error}") from None


def _namespaces(version: Folder) -> Iterator[NamespaceSummary]:
    for entry in version.entries():
        if entry.kind == "directory" and parse_id(entry.name) is not None:
            with version.child(entry.name) as folder:
                yield _namespace(folder)


def _namespace(folder: Folder) -> NamespaceSummary:
    entries = folder.entries()
    epochs = [parse_epoch(entry.name) or 0 for entry in entries if entry.kind == "file"]
    summary = NamespaceSummary(folder.path.name, epoch=max(epochs, default=0))
    try:
        text = folder.read(META_NAME, META_BYTES_MAX).decode()
        summary.fingerprint, summary.chunk_bytes, _ = parse_meta(text)
    except (OSError, ValueError) as error:
        summary.fault = f"{META_NAME}: {error}"
    if any(entry.name == HOSTS_NAME and entry.kind == "directory" for entry in entries):
        with folder.child(HOSTS_NAME) as hosts:
            for entry in hosts.entries():
                name = parse_host(entry.name)
                if entry.kind == "directory" and name is not None:
                    with _gone_meanwhile(), hosts.child(entry.name) as host:
                        summary.hosts.append(_host(host, name))
    return summary


def _host(folder: Folder, name: HostName) -> HostSummary:
    summary = HostSummary(name.host.hex(), name.adopter.hex() if name.adopter else "")
    files = sort_out(folder, Report(str(folder.path)))
    for number in files.segments:
        with _gone_meanwhile():
            summary.bytes += folder.status(segment_name(number)).st_size
            summary.segments += 1
    for number in files.indexes:
        index = _index(folder, index_name(number))
        summary.records += len(index["records"]) if index else 0
    tail = _index(folder, TAIL_NAME) if files.tail else None
    if tail is not None and tail["number"] not in files.indexes:
        summary.records += len(tail["records"])
    _lease(folder, files.lease, summary)
    return summary


def _index(folder: Folder, name: str) -> dict[str, Any] | None:
    try:
        with folder.file(name) as fd:
            return read_index(fd)
    except (OSError, ValueError):
        return None  # not countable; `kvtier verify` says why


def _lease(folder: Folder, there: bool, summary: HostSummary) -> None:
    if not there:
        summary.lease = "none"
        return
    try:
        with folder.file(LEASE_NAME) as fd:
            lease = read_lease(fd)
            summary.lease = "left" if lease["leaving"] else "held"
        summary.lease_age_s = max(0.0, time.time() - folder.status(LEASE_NAME).st_mtime)
    except OSError:
        summary.lease = "none"
    except ValueError:
        summary.lease = "damaged"


def fingerprint_json(summary: NamespaceSummary) -> str:
    """Its fingerprint as one line."""
    return json.dumps(summary.fingerprint, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@contextmanager
def _gone_meanwhile() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        return  # deleted or adopted since the directory was listed
