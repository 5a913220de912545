"""`kvtier ls --storage`: the namespaces of a root, or the hosts of one."""

import dataclasses
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvtier.cli.connect import shown
from kvtier.errors import InvalidArgument, UnknownNamespace
from kvtier.sizes import show_age, show_size
from kvtier.storage.summary import HostSummary, NamespaceSummary, fingerprint_json, summarize


def show_root(root: Path, prefix: str | None, as_json: bool) -> None:
    """Print the namespaces of `root`, or the hosts of the one whose id starts with `prefix`."""
    namespaces = summarize(root)
    if prefix is not None:
        namespaces = [_only(namespaces, prefix, root)]
    if as_json:
        for namespace in namespaces:
            json.dump(dataclasses.asdict(namespace), sys.stdout)
            sys.stdout.write("\n")
    elif prefix is not None:
        _console().print(_hosts(namespaces[0].hosts))
    else:
        _console().print(_namespaces(namespaces))


def _console() -> Console:
    """As wide as the terminal; into a pipe, as wide as the ids need."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _only(namespaces: list[NamespaceSummary], prefix: str, root: Path) -> NamespaceSummary:
    found = [namespace for namespace in namespaces if namespace.id.startswith(prefix.lower())]
    if not found:
        raise UnknownNamespace(f"no namespace's id below {root} starts with {prefix!r}")
    if len(found) > 1:
        raise InvalidArgument(
            f"{len(found)} namespaces' ids below {root} start with {prefix!r}; give more of it"
        )
    return found[0]


def _namespaces(namespaces: list[NamespaceSummary]) -> Table:
    table = Table("namespace", "what it holds", box=None, header_style="bold")
    for name in ("chunk", "epoch", "hosts", "segments", "records", "bytes"):
        table.add_column(name, justify="right")
    for namespace in namespaces:
        table.add_row(
            namespace.id,
            _describe(namespace),
            show_size(namespace.chunk_bytes) if namespace.chunk_bytes else "-",
            str(namespace.epoch),
            f"{len(namespace.hosts):,}",
            f"{namespace.total('segments'):,}",
            f"{namespace.total('records'):,}",
            show_size(namespace.total("bytes")),
        )
    return table


def _describe(namespace: NamespaceSummary) -> Text:
    """The fields of the fingerprint that people recognise, else the start of it."""
    if namespace.fault:
        return Text("refused: ", "red").append_text(shown(namespace.fault, 60))
    record = namespace.fingerprint
    names = ("model", "dtype", "kv_dtype", "group")
    named = [str(record[name]) for name in names if record.get(name) is not None]
    return shown(" ".join(named) or fingerprint_json(namespace), 40)


def _hosts(hosts: list[HostSummary]) -> Table:
    table = Table("host", "adopted by", "lease", box=None, header_style="bold")
    for name in ("lease age", "segments", "records", "bytes"):
        table.add_column(name, justify="right")
    for host in hosts:
        table.add_row(
            host.host,
            host.adopted_by[:12],
            host.lease,
            "-" if host.lease_age_s is None else show_age(host.lease_age_s),
            f"{host.segments:,}",
            f"{host.records:,}",
            show_size(host.bytes),
        )
    return table
