"""A benchmark's results as a table of a Markdown file, between two markers that name the benchmark."""

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from kvtier.bench import machine
from kvtier.bench.report import Result
from kvtier.errors import InvalidArgument

_MARK: Final = "<!-- {} kvtier bench {} -->"


def write(path: Path, name: str, results: Sequence[Result], facts: dict[str, Any], command: str) -> None:
    """Replace what stands between the markers. InvalidArgument when they are not there."""
    begin, end = _MARK.format("begin", name), _MARK.format("end", name)
    text = path.read_text()
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise InvalidArgument(f"{path} has no lines '{begin}' and '{end}'")
    today = datetime.datetime.now(datetime.UTC).date()
    head = f"`{command}`, {today}, on {machine.summary(facts)}."
    path.write_text("\n".join((before + begin, "", head, "", *rows(results), "", end + after)))


def rows(results: Iterable[Result]) -> list[str]:
    """Cases of the form "row: column" become cells; one that misses its budget is bold."""
    cells: dict[str, dict[str, str]] = {}
    columns: dict[str, None] = {}
    for result in results:
        row, _, column = result.case.rpartition(": ")
        columns[column] = None
        text = f"{show(result.value)} {result.unit}".strip()
        cells.setdefault(row, {})[column] = f"**{text}**" if result.ok is False else text
    lines = [["", *columns], ["---", *["--:"] * len(columns)]]
    lines += [[row, *(found.get(column, "") for column in columns)] for row, found in cells.items()]
    return ["| " + " | ".join(line) + " |" for line in lines]


def show(value: float) -> str:
    """Three digits are what these measurements are worth."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
