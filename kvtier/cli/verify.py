"""`kvtier verify`: fsck of what lies on storage, and of the arena."""

import dataclasses
import json
import sys
from collections import Counter
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from kvtier.cli.connect import shown
from kvtier.cli.verify_arena import verify_arena
from kvtier.config import default_shm_dir
from kvtier.io.secret_file import seal_key
from kvtier.sizes import show_size
from kvtier.storage.findings import Finding, Report
from kvtier.storage.verify import verify as verify_path

_ROWS_MAX: Final = 200


@click.command(short_help="check what lies on storage, or chunks in memory")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "--arena", is_flag=True, help="Check the chunks in memory that have a checksum (dram_checksum) instead."
)
@click.option(
    "--shm-dir",
    type=click.Path(path_type=Path),
    envvar="KVTIER_SHM_DIR",
    help="The arena's directory, as given to kvtier serve  [env: KVTIER_SHM_DIR; default: the daemon's]",
)
@click.option(
    "--headers-only", is_flag=True, help="Do not read payloads: quick, and blind to damage in them."
)
@click.option(
    "--storage-key",
    default="",
    envvar="KVTIER_STORAGE_KEY",
    metavar="FILE",
    help="The root's key, as given to kvtier serve: seals are checked too  [env: KVTIER_STORAGE_KEY]",
)
@click.option("--all", "show_all", is_flag=True, help=f"Show more than {_ROWS_MAX} findings.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def verify(
    path: Path | None,
    arena: bool,
    shm_dir: Path | None,
    headers_only: bool,
    storage_key: str,
    show_all: bool,
    as_json: bool,
) -> int:
    """Check every record, index and lease below PATH, or with --arena the chunks in memory.

    PATH is a storage root, a namespace, a host's directory or a file of one. Needs no daemon, writes nothing
    and follows no link below PATH. Exit code 0: all is sound; 1: something bad was found, and is named;
    2: PATH (the arena) cannot be read.
    """
    if arena == (path is not None):
        raise click.UsageError("give either PATH or --arena")
    if path is None:
        return verify_arena(default_shm_dir() if shm_dir is None else shm_dir, show_all, as_json)
    console = Console(stderr=True)
    with console.status(f"reading {path}") if console.is_terminal else nullcontext():
        report = verify_path(path, not headers_only, seal_key(storage_key))
    if as_json:
        json.dump(_record(report), sys.stdout)
        sys.stdout.write("\n")
    else:
        _show(report, headers_only, show_all)
    return 1 if report.bad else 0


def _record(report: Report) -> dict[str, object]:
    record = dataclasses.asdict(report)
    for row in record["findings"]:
        row["key"] = row["key"].hex() if row["key"] is not None else None
    return {"sound": not report.bad, **record}


def _show(report: Report, headers_only: bool, show_all: bool) -> None:
    console = Console()
    findings = sorted(report.findings, key=lambda finding: finding.severity)  # bad ones first
    rows = findings if show_all else findings[:_ROWS_MAX]
    for path, of_file in groupby(rows, lambda finding: finding.path):
        console.print(shown(path, 4096).append(":"), style="bold", soft_wrap=True)
        for finding in of_file:
            _print(finding, console)
    if len(rows) < len(findings):
        console.print(f"... and {len(findings) - len(rows):,} more: --all shows them", style="dim")
    counts = Counter(finding.severity for finding in findings)
    console.print(
        f"{report.namespaces:,} namespaces, {report.hosts:,} hosts, {report.segments:,} segments, "
        f"{report.indexes:,} indexes, {report.records:,} sound records, {show_size(report.bytes)} read"
        + (" (headers only)" if headers_only else "")
    )
    verdict = Text(f"{counts['bad']:,} bad", "bold red") if counts["bad"] else Text("sound", "bold green")
    console.print(verdict.append(f", {counts['note']:,} notes" if counts["note"] else "", "default"))


def _print(finding: Finding, console: Console) -> None:
    text = Text("  ").append(f"{finding.severity:5}", "red" if finding.severity == "bad" else "dim")
    if finding.offset is not None:
        text.append(f"at {finding.offset:<12} ")
    if finding.key is not None:
        text.append(f"key {finding.key.hex()} ", "cyan")
    console.print(text.append_text(shown(finding.what, 400)), soft_wrap=True)
