"""`kvtier ls`: namespaces, or the chunks of one; with --storage, what lies below a root."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvtier.cli.connect import address_option, shown
from kvtier.cli.ls_storage import show_root
from kvtier.client.channel import ControlChannel
from kvtier.errors import InvalidArgument, UnknownNamespace
from kvtier.sizes import show_size
from kvtier.types import ChunkInfo, NamespaceInfo


@click.command(short_help="namespaces, or the chunks of one")
@click.argument("namespace", required=False)
@address_option
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Most chunks to show."
)
@click.option(
    "--storage",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="List what lies below this storage root instead: no daemon is asked, nothing is written.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def ls(namespace: str | None, address: str, limit: int, storage: Path | None, as_json: bool) -> None:
    """List the namespaces, or the chunks of NAMESPACE (the start of its id is enough).

    With --storage, the namespaces of a root, or the hosts that hold chunks of NAMESPACE there.
    """
    if storage is not None:
        show_root(storage, namespace, as_json)
        return
    with ControlChannel(address) as channel:
        namespaces = channel.list_namespaces()
        if namespace is None:
            _show(namespaces, _namespace_table(namespaces), as_json)
            return
        chunks = channel.list_chunks(resolve(namespace, namespaces).id, limit=limit)
    _show(chunks, _chunk_table(chunks), as_json)


def resolve(prefix: str, namespaces: list[NamespaceInfo]) -> NamespaceInfo:
    """The one whose id starts with `prefix`."""
    found = [info for info in namespaces if info.id.hex().startswith(prefix.lower())]
    if not found:
        raise UnknownNamespace(f"no namespace's id starts with {prefix!r}; kvtier ls shows them")
    if len(found) > 1:
        raise InvalidArgument(f"{len(found)} namespaces' ids start with {prefix!r}; give more of it")
    return found[0]


def _show(rows: list[Any], table: Table, as_json: bool) -> None:
    if not as_json:
        Console().print(table)
        return
    for row in rows:
        json.dump(dataclasses.asdict(row), sys.stdout, default=bytes.hex)
        sys.stdout.write("\n")


def _namespace_table(namespaces: list[NamespaceInfo]) -> Table:
    table = Table("namespace", "what it holds", box=None, header_style="bold")
    for name in ("chunk", "chunks", "bytes", "epoch"):
        table.add_column(name, justify="right")
    for info in namespaces:
        table.add_row(
            info.id.hex(),
            describe(info),
            show_size(info.chunk_bytes),
            f"{info.chunks:,}",
            show_size(info.bytes),
            str(info.epoch),
        )
    return table


def engine_of(info: NamespaceInfo) -> Text:
    """Which engine's pages lie there, as its adapter's fingerprint says; "-" for other clients."""
    return shown(str(json.loads(info.fingerprint_json).get("engine") or "-"), 8)


def describe(info: NamespaceInfo) -> Text:
    """Its label, or the fields of the fingerprint that people recognise, else the start of it."""
    if info.label:
        return shown(info.label, 40)
    record = json.loads(info.fingerprint_json)
    named = [
        str(record[name]) for name in ("model", "dtype", "kv_dtype", "group") if record.get(name) is not None
    ]
    text = " ".join(named) or info.fingerprint_json
    return shown(text, 40)


def _chunk_table(chunks: list[ChunkInfo]) -> Table:
    table = Table("key", "state", box=None, header_style="bold")
    for name in ("slot", "generation", "pins", "offset"):
        table.add_column(name, justify="right")
    for chunk in chunks:
        table.add_row(
            chunk.key.hex(),
            chunk.state,
            str(chunk.slot),
            str(chunk.generation),
            str(chunk.pins),
            str(chunk.offset),
        )
    return table
