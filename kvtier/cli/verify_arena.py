"""`kvtier verify --arena`: are the chunks in memory what was stored?"""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Final

import click

from kvtier.errors import ConfigError
from kvtier.io import native, shm
from kvtier.sizes import show_size

_ROWS_MAX: Final = 200


def verify_arena(directory: Path, show_all: bool, as_json: bool) -> int:
    """Print what was found; 1 when a chunk is damaged. ConfigError when the arena cannot be read."""
    try:
        with shm.reading(directory) as (data_fd, meta_fd):
            report = native.check_arena(data_fd=data_fd, meta_fd=meta_fd)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"shm_dir = {str(directory)!r}: the arena cannot be read: {error}") from None
    damaged = report["damaged"]
    if as_json:
        rows = [
            chunk | {"namespace": chunk["namespace"].hex(), "key": chunk["key"].hex()} for chunk in damaged
        ]
        json.dump({"sound": not damaged, **report, "damaged": rows}, sys.stdout)
        sys.stdout.write("\n")
        return 1 if damaged else 0
    for chunk in islice(damaged, None if show_all else _ROWS_MAX):
        click.echo(
            f"bad   at {chunk['offset']:<12} namespace {chunk['namespace'].hex()} key {chunk['key'].hex()}"
        )
    if not show_all and len(damaged) > _ROWS_MAX:
        click.echo(f"... and {len(damaged) - _ROWS_MAX:,} more: --all shows them")
    click.echo(
        f"{report['chunks']:,} chunks, {report['checked']:,} checked, {report['unchecked']:,} without a "
        f"checksum, {report['changed']:,} changed meanwhile, {show_size(report['bytes'])} read"
    )
    click.echo(f"{len(damaged):,} bad" if damaged else "sound")
    return 1 if damaged else 0
