"""A host's directory: its lease, its segments with their indexes, and what else lies there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from kvtier.io.native import read_lease
from kvtier.storage.findings import Report
from kvtier.storage.folder import Folder
from kvtier.storage.names import (
    LEASE_NAME,
    TAIL_NAME,
    index_name,
    is_temporary,
    parse_host,
    parse_index,
    parse_segment,
    segment_name,
)
from kvtier.storage.segments import NamedIndex, Wanted, check_index, check_segment


@dataclass(slots=True)
class HostFiles:
    """The names of a host's directory, sorted out."""

    segments: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    tail: bool = False
    lease: bool = False


def sort_out(folder: Folder, report: Report) -> HostFiles:
    """What is ours; what is foreign goes into the report."""
    files = HostFiles()
    for entry in folder.entries():
        segment, index = parse_segment(entry.name), parse_index(entry.name)
        if entry.kind != "file":
            report.add_foreign(folder.path / entry.name, entry.kind)
        elif segment is not None:
            files.segments.append(segment)
        elif index is not None:
            files.indexes.append(index)
        elif entry.name == TAIL_NAME:
            files.tail = True
        elif entry.name == LEASE_NAME:
            files.lease = True
        elif is_temporary(entry.name):
            report.add_note(folder.path / entry.name, "a temporary: left by a crash, or at work right now")
        else:
            report.add_foreign(folder.path / entry.name, entry.kind)
    return files


def check_host(folder: Folder, wanted: Wanted, check_payloads: bool, report: Report) -> None:
    """Everything in it. The host is a living one, perhaps: what goes away meanwhile is no fault."""
    report.hosts += 1
    name = parse_host(folder.path.name)
    wanted = replace(wanted, host=name.host if name else wanted.host)
    files = sort_out(folder, report)
    _check_lease(folder, files, wanted, name is not None and name.adopter is not None, report)
    tail = _tail(folder, files, wanted, report)
    for number in files.segments:
        indexes = []
        if number in files.indexes:
            indexes += _index(folder, index_name(number), replace(wanted, number=number), True, report)
        if tail is not None and tail.index["number"] == number:
            indexes.append(tail)
        with _unless_gone(), folder.file(segment_name(number)) as fd:
            path = folder.path / segment_name(number)
            check_segment(fd, path, replace(wanted, number=number), indexes, check_payloads, report)
    _check_lonely(folder, files, tail, report)


def _check_lease(folder: Folder, files: HostFiles, wanted: Wanted, adopted: bool, report: Report) -> None:
    if not files.lease:
        if files.segments and not adopted:
            report.add_note(folder.path, "has no lease: the host is taken for dead")
        return
    path = folder.path / LEASE_NAME
    with _unless_gone(), folder.file(LEASE_NAME) as fd:
        try:
            lease = read_lease(fd)
        except ValueError as error:
            report.add_bad(path, str(error))
            return
        if wanted.host is not None and lease["host"] != wanted.host:
            report.add_bad(path, f"host is {lease['host'].hex()}; {wanted.host.hex()} is wanted")


def _tail(folder: Folder, files: HostFiles, wanted: Wanted, report: Report) -> NamedIndex | None:
    if not files.tail:
        return None
    found = _index(folder, TAIL_NAME, wanted, False, report)
    return found[0] if found else None


def _index(folder: Folder, name: str, wanted: Wanted, sealed: bool, report: Report) -> list[NamedIndex]:
    path = folder.path / name
    with _unless_gone(), folder.file(name) as fd:
        index = check_index(fd, path, wanted, sealed, report)
        if index is not None:
            return [NamedIndex(path, index)]
    return []


def _check_lonely(folder: Folder, files: HostFiles, tail: NamedIndex | None, report: Report) -> None:
    """Indexes without their segment: misses, and no damage. One may be published after its segment went."""
    for number in files.indexes:
        if number in files.segments or _is_there(folder, segment_name(number)):
            continue
        if _is_there(folder, index_name(number)):
            report.add_note(folder.path / index_name(number), "an index without its segment: all misses")
    if tail is not None and not _is_there(folder, segment_name(tail.index["number"])):
        report.add_note(tail.path, f"of segment {tail.index['number']}, which is gone")


def _is_there(folder: Folder, name: str) -> bool:
    try:
        folder.status(name)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        return  # deleted or adopted since the directory was listed
