"""The whole check: of a file, a host's directory, a namespace or a root."""

import os
import stat
from pathlib import Path

from kvtier.errors import InvalidArgument
from kvtier.format.seal import seal_name
from kvtier.format.storage import (
    MARKER_BYTES_MAX,
    MARKER_NAME,
    META_BYTES_MAX,
    META_NAME,
    parse_marker,
    parse_meta,
    seal_of,
)
from kvtier.io.native import read_lease
from kvtier.storage.findings import Report
from kvtier.storage.folder import Folder
from kvtier.storage.hosts import check_host
from kvtier.storage.names import (
    HOSTS_NAME,
    LEASE_NAME,
    VERSION_NAME,
    is_temporary,
    parse_epoch,
    parse_host,
    parse_id,
    parse_index,
    parse_segment,
)
from kvtier.storage.segments import Wanted, check_index, check_segment, file_kind


class Unreadable(InvalidArgument):
    """The path cannot be looked at: not there, no permission, of a newer format, or none of ours."""


def verify(path: Path, check_payloads: bool, seal_key: bytes = b"") -> Report:
    """What is found below `path`; Unreadable when it cannot be looked at. seal_key: of the root, if known."""
    report = Report(str(path))
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            with Folder.open(path) as folder:
                _check_folder(folder, check_payloads, seal_key, report)
        else:
            _check_file(path, check_payloads, seal_key, report)
    except OSError as error:
        where = f" ({error.filename})" if error.filename not in (None, str(path)) else ""
        raise Unreadable(f"{path}: {error.strerror or error}{where}") from error
    return report


# ---- what the path is ----


def folder_kind(folder: Folder) -> str:
    """`root`, `namespace`, `host` or "": by its name, and by what it holds."""
    names = {entry.name for entry in folder.entries()}
    if names & {MARKER_NAME, VERSION_NAME}:
        return "root"
    if names & {META_NAME, HOSTS_NAME}:
        return "namespace"
    ours = LEASE_NAME in names or any(parse_segment(name) or parse_index(name) for name in names)
    return "host" if ours or folder.path.resolve().parent.name == HOSTS_NAME else ""


def _check_folder(folder: Folder, check_payloads: bool, seal_key: bytes, report: Report) -> None:
    kind = folder_kind(folder)
    if kind == "root":
        check_root(folder, check_payloads, seal_key, report)
    elif kind == "namespace":
        check_namespace(folder, check_payloads, seal_key, report)
    elif kind == "host":
        check_host(folder, _wanted_of_host(folder, seal_key), check_payloads, report)
    else:
        raise Unreadable(f"{folder.path} is no storage root, no namespace and no host's directory")


def _wanted_of_host(folder: Folder, seal_key: bytes) -> Wanted:
    """What the namespace above says, where the directory lies in one."""
    hosts = folder.path.resolve().parent
    if hosts.name != HOSTS_NAME or parse_id(hosts.parent.name) is None:
        return Wanted(seal_key=seal_key)
    with Folder.open(hosts.parent) as above:
        return _wanted_of_namespace(above, seal_key, Report(str(hosts.parent)))


def _check_file(path: Path, check_payloads: bool, seal_key: bytes, report: Report) -> None:
    with Folder.open(path.parent) as folder, folder.file(path.name) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Unreadable(f"{path} is neither a file nor a directory")
        kind = file_kind(fd)
        number = parse_segment(path.name) or parse_index(path.name)
        if kind == "segment" or parse_segment(path.name):
            check_segment(fd, path, Wanted(number=number, seal_key=seal_key), None, check_payloads, report)
        elif kind == "index" or path.name.endswith(".idx"):
            check_index(fd, path, Wanted(number=number), parse_index(path.name) is not None, report)
        elif kind == "lease" or path.name == LEASE_NAME:
            try:
                read_lease(fd)
            except ValueError as error:
                report.add_bad(path, str(error))
        elif path.name == MARKER_NAME:
            _check_marker(folder, report)
        elif path.name == META_NAME:
            _meta(folder, None, report)
        else:
            raise Unreadable(f"{path} is no segment, index, lease, {MARKER_NAME} or {META_NAME}")


# ---- root and namespace ----


def check_root(folder: Folder, check_payloads: bool, seal_key: bytes, report: Report) -> None:
    """Marker, namespaces, and what is foreign."""
    names = {entry.name: entry.kind for entry in folder.entries()}
    if names.get(MARKER_NAME) == "file":
        _check_marker(folder, report)
    else:
        report.add_bad(folder.path / MARKER_NAME, "is missing, or is no file")
    for name, kind in names.items():
        if name == VERSION_NAME and kind == "directory":
            with folder.child(name) as version:
                _check_version(version, check_payloads, seal_key, report)
        elif is_temporary(name) and kind == "file":
            report.add_note(folder.path / name, "a temporary: left by a crash, or at work right now")
        elif name != MARKER_NAME or kind != "file":
            report.add_foreign(folder.path / name, kind)


def _check_version(folder: Folder, check_payloads: bool, seal_key: bytes, report: Report) -> None:
    for entry in folder.entries():
        if parse_id(entry.name) is None or entry.kind != "directory":
            report.add_foreign(folder.path / entry.name, entry.kind)
            continue
        with folder.child(entry.name) as namespace:
            check_namespace(namespace, check_payloads, seal_key, report)


def _check_marker(folder: Folder, report: Report) -> None:
    path = folder.path / MARKER_NAME
    try:
        parse_marker(folder.read(MARKER_NAME, MARKER_BYTES_MAX).decode())
    except InvalidArgument as error:
        if "this version of kvtier reads" in str(error):
            raise Unreadable(f"{path}: {error}") from None
        report.add_bad(path, str(error))
    except ValueError as error:
        report.add_bad(path, str(error))


def check_namespace(folder: Folder, check_payloads: bool, seal_key: bytes, report: Report) -> None:
    """meta.json, epochs, hosts."""
    report.namespaces += 1
    wanted = _wanted_of_namespace(folder, seal_key, report)
    for entry in folder.entries():
        path = folder.path / entry.name
        if entry.name == HOSTS_NAME and entry.kind == "directory":
            with folder.child(entry.name) as hosts:
                _check_hosts(hosts, wanted, check_payloads, report)
        elif entry.kind == "file" and parse_epoch(entry.name) is not None:
            if folder.status(entry.name).st_size != 0:
                report.add_note(path, "an epoch's file is empty; its bytes are not read")
        elif entry.kind == "file" and is_temporary(entry.name):
            report.add_note(path, "a temporary: left by a crash, or at work right now")
        elif entry.name != META_NAME or entry.kind != "file":
            report.add_foreign(path, entry.kind)


def _check_hosts(folder: Folder, wanted: Wanted, check_payloads: bool, report: Report) -> None:
    for entry in folder.entries():
        if parse_host(entry.name) is None or entry.kind != "directory":
            report.add_foreign(folder.path / entry.name, entry.kind)
            continue
        try:
            with folder.child(entry.name) as host:
                check_host(host, wanted, check_payloads, report)
        except FileNotFoundError:
            report.add_note(folder.path / entry.name, "went away meanwhile: adopted")


def _wanted_of_namespace(folder: Folder, seal_key: bytes, report: Report) -> Wanted:
    entries = folder.entries()
    epochs = [parse_epoch(entry.name) or 0 for entry in entries if entry.kind == "file"]
    epoch = max(epochs, default=0)
    directory_id = parse_id(folder.path.resolve().name)
    if any(entry.name == META_NAME and entry.kind == "file" for entry in entries):
        chunk_bytes = _meta(folder, directory_id, report)
        seal_key = _key_for(folder, seal_key, report) if chunk_bytes is not None else seal_key
        return Wanted(namespace=directory_id, epoch=epoch, chunk_bytes=chunk_bytes, seal_key=seal_key)
    report.add_bad(folder.path / META_NAME, "is missing, or is no file: nobody knows what the chunks are")
    return Wanted(namespace=directory_id, epoch=epoch, seal_key=seal_key)


def _key_for(folder: Folder, seal_key: bytes, report: Report) -> bytes:
    """The key with which its records are to be checked; where it is not clear, one line says so."""
    path = folder.path / META_NAME
    sealed = seal_of(folder.read(META_NAME, META_BYTES_MAX).decode())
    if not seal_key:
        if sealed:
            report.add_note(
                path, f"sealed ({sealed}); without --storage-key a forgery is not told from a record"
            )
        return b""
    if sealed in {seal_name(seal, seal_key) for seal in ("mac", "encrypt")}:
        return seal_key
    report.add_bad(
        path, f"is sealed by {sealed or 'nothing'}, not by the given key: records are checked without"
    )
    return b""


def _meta(folder: Folder, directory_id: bytes | None, report: Report) -> int | None:
    """chunk_bytes, or None when the file is not sound."""
    path = folder.path / META_NAME
    try:
        _, chunk_bytes, namespace = parse_meta(folder.read(META_NAME, META_BYTES_MAX).decode())
    except ValueError as error:  # UnicodeDecodeError and InvalidArgument among them
        report.add_bad(path, str(error))
        return None
    if directory_id is not None and namespace != directory_id:
        what = f"its fingerprint's id is {namespace.hex()}; the directory is another namespace's"
        report.add_bad(path, what)
        return None
    return chunk_bytes
