"""What a look at a root found."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

Severity = Literal["bad", "note"]
Key: TypeAlias = bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth saying. `bad`: bytes or files that are not what they should be; all of them are misses
    for readers. `note`: not damage (foreign files, a torn end that nobody was promised, left-overs)."""

    severity: Severity
    path: str
    what: str
    offset: int | None = None
    key: Key | None = None


@dataclass(slots=True)
class Report:
    """Counts of what was looked at, and what was found."""

    path: str
    namespaces: int = 0
    hosts: int = 0
    segments: int = 0
    indexes: int = 0
    records: int = 0  # that verify
    bytes: int = 0  # of segment files
    foreign: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def bad(self) -> list[Finding]:
        """What makes the look end with 1."""
        return [finding for finding in self.findings if finding.severity == "bad"]

    def add_bad(self, path: Path, what: str, offset: int | None = None, key: Key | None = None) -> None:
        """Something that is not what it should be."""
        self.findings.append(Finding("bad", str(path), what, offset, key or None))

    def add_note(self, path: Path, what: str, offset: int | None = None, key: Key | None = None) -> None:
        """Something to know."""
        self.findings.append(Finding("note", str(path), what, offset, key or None))

    def add_foreign(self, path: Path, kind: str) -> None:
        """A name that is none of ours."""
        self.foreign += 1
        what = {"link": "a symbolic link, not followed", "directory": "a foreign directory, not entered"}
        self.add_note(path, what.get(kind, "a foreign file, not read"))


def first_differences(pairs: Iterable[tuple[str, object, object]]) -> str:
    """`epoch is 3; 2 is wanted` for the first (field, found, wanted) that differ; a wanted None is any."""
    for name, found, wanted in pairs:
        if wanted is not None and found != wanted:
            return f"{name} is {_shown(found)}; {_shown(wanted)} is wanted"
    return ""


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
