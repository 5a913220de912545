"""One segment with its indexes: every record, and whether the indexes say what is there."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvtier.io.native import read_index, scan_segment
from kvtier.storage.findings import Report, first_differences

UNIT_BYTES: Final = 4096
IDENTITY: Final = ("namespace", "host", "number", "epoch", "chunk_bytes")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the place of a file says of it; None: it says nothing."""

    namespace: bytes | None = None
    host: bytes | None = None
    number: int | None = None
    epoch: int | None = None  # the namespace's present one
    chunk_bytes: int | None = None
    seal_key: bytes = b""  # of the root; empty: nobody gave it, and seals are not looked at


def check_identity(found: dict[str, Any], wanted: Wanted) -> tuple[str, str]:
    """(what is wrong, what is to be known); older epochs are the way of all segments after a clear, unless
    a host has not cleared: it goes on with its own.
    """
    pairs = [(name, found[name], getattr(wanted, name)) for name in IDENTITY if name != "epoch"]
    wrong = first_differences(pairs)
    note = ""
    if wanted.epoch is not None and found["epoch"] != wanted.epoch:
        words = f"epoch is {found['epoch']}; {wanted.epoch} is the namespace's: its hosts read none of it"
        wrong, note = (wrong or words, note) if found["epoch"] > wanted.epoch else (wrong, words)
    return wrong, note


def check_index(fd: int, path: Path, wanted: Wanted, sealed: bool, report: Report) -> dict[str, Any] | None:
    """The index in this file, or None when it is not one that can be used."""
    report.indexes += 1
    try:
        index = read_index(fd)
    except ValueError as error:
        report.add_bad(path, str(error))
        return None
    wrong, note = check_identity(index, wanted)
    if not wrong and index["sealed"] != sealed:
        wrong = f"sealed is {int(index['sealed'])}; {int(sealed)} is wanted in a file of this name"
    if wrong:
        report.add_bad(path, wrong)
        return None
    if note:
        report.add_note(path, note)
    return index


@dataclass(frozen=True, slots=True)
class NamedIndex:
    """An index and where it lies."""

    path: Path
    index: dict[str, Any]


def check_segment(
    fd: int,
    path: Path,
    wanted: Wanted,
    indexes: list[NamedIndex] | None,
    check_payloads: bool,
    report: Report,
) -> None:
    """The segment in this file, and what its indexes, sound by themselves, say of it.

    indexes None: nobody looked for any, so nothing says how much was published, and every fault counts.
    """
    found = scan_segment(fd, check_payloads, wanted.seal_key)
    report.segments += 1
    report.bytes += found["file_bytes"]
    # What was not published was never promised: a crash, or a writer at work, leaves it torn.
    if indexes is None:
        indexes, published_bytes = [], found["file_bytes"] + 1
    else:
        published_bytes = max((named.index["segment_bytes"] for named in indexes), default=0)
    if not found["number"]:
        add = report.add_bad if published_bytes else report.add_note
        add(path, found["stopped"], 0)
        return
    wrong, note = check_identity(found, wanted)
    if wrong:
        report.add_bad(path, f"segment header: {wrong}", 0)
    if note and not indexes:  # else its index has said so
        report.add_note(path, note)
    sound = {record["offset"]: record for record in found["records"] if not record["why"]}
    report.records += len(sound)
    _report_records(found, path, published_bytes, report)
    for named in indexes:
        if named.index["segment_bytes"] > found["file_bytes"]:
            what = f"has {found['file_bytes']} bytes; {named.path.name} was written when it had "
            report.add_bad(path, what + str(named.index["segment_bytes"]), found["file_bytes"])
        _check_against(named, found, sound, report)


def _report_records(found: dict[str, Any], path: Path, published_bytes: int, report: Report) -> None:
    sound = [record["offset"] for record in found["records"] if not record["why"]]
    last_sound = max(sound, default=0)
    odd_bytes = found["file_bytes"] % UNIT_BYTES
    if odd_bytes:
        add = report.add_bad if published_bytes > found["file_bytes"] else report.add_note
        add(path, f"{odd_bytes} bytes at the end that are no record", found["file_bytes"] - odd_bytes)
    for record in found["records"]:
        if not record["why"]:
            continue
        torn = record["offset"] >= published_bytes and record["offset"] > last_sound
        if torn:
            report.add_note(
                path, f"torn end, never published: {record['why']}", record["offset"], record["key"]
            )
        else:
            report.add_bad(path, record["why"], record["offset"], record["key"])


def _check_against(
    named: NamedIndex, found: dict[str, Any], sound: dict[int, dict[str, Any]], report: Report
) -> None:
    """Every entry leads to the record it describes, and no published record is left out."""
    index = named.index
    wrong = first_differences((name, index[name], found[name]) for name in IDENTITY)
    if wrong:
        report.add_bad(named.path, f"is not of the segment beside it: {wrong}")
        return
    bad = {record["offset"]: record["why"] for record in found["records"] if record["why"]}
    for entry in index["records"]:
        offset = entry["offset"]
        record = sound.get(offset)
        if record is not None:
            fields = ("key", "stored_bytes", "codec", "payload_crc")
            wrong = first_differences((name, entry[name], record[name]) for name in fields)
            if wrong:
                report.add_bad(
                    named.path, f"entry does not describe its record: {wrong}", offset, entry["key"]
                )
        elif offset in bad:
            # The record has its own line; here is what it was, which its header may not say any more.
            report.add_bad(named.path, f"entry of a bad record: {bad[offset]}", offset, entry["key"])
        else:
            report.add_bad(named.path, "entry leads to no record", offset, entry["key"])
    _check_left_out(named, sound, report)


def _check_left_out(named: NamedIndex, sound: dict[int, dict[str, Any]], report: Report) -> None:
    listed = {entry["key"]: entry["offset"] for entry in named.index["records"]}
    for offset, record in sound.items():
        if offset >= named.index["segment_bytes"]:
            continue
        other = listed.get(record["key"])
        if other is None:
            report.add_bad(named.path, "a sound record is not in the index", offset, record["key"])
        elif other < offset:
            report.add_bad(
                named.path, f"names the record at {other}, not the later one", offset, record["key"]
            )


def file_kind(fd: int) -> str:
    """`segment`, `index`, `lease`, or "" by the first eight bytes."""
    kinds = {b"KVTSEG01": "segment", b"KVTIDX01": "index", b"KVLEAS01": "lease"}
    return kinds.get(os.pread(fd, 8, 0), "")
