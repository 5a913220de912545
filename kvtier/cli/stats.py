"""`kvtier stats`: the daemon at a glance."""

import json
import time
from collections import defaultdict
from contextlib import nullcontext
from typing import Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvtier.cli.connect import address_option, shown
from kvtier.cli.ls import describe, engine_of
from kvtier.cli.stats_storage import codec_rows, on_storage, storage_rows
from kvtier.client.channel import ControlChannel, stats_record
from kvtier.errors import DaemonUnavailable
from kvtier.sizes import show_age, show_size
from kvtier.types import DaemonStats, NamespaceInfo, SessionInfo

_BAR_CELLS: Final = 40


@click.command(short_help="what the daemon holds and how it is used")
@address_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--watch", is_flag=True, help="Live, until Ctrl-C.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    help="Seconds between looks.",
)
def stats(address: str, as_json: bool, watch: bool, interval: float) -> None:
    """Show what the daemon holds and how it is used."""
    if as_json and watch:
        raise click.UsageError("--json and --watch exclude each other")
    with ControlChannel(address) as channel:
        if as_json:
            click.echo(json.dumps(stats_record(channel.daemon_stats())))
        elif watch:
            _watch(channel, interval)
        else:
            Console().print(page(channel.daemon_stats(), None, 0.0, address))


def _watch(channel: ControlChannel, interval_s: float) -> None:
    before: DaemonStats | None = None
    console = Console()
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            shown: RenderableType
            try:
                now = channel.daemon_stats()
                same_boot = before if before is not None and before.boot_id == now.boot_id else None
                elapsed_s = now.uptime_s - same_boot.uptime_s if same_boot else 0.0
                shown, before = page(now, same_boot, elapsed_s, channel.address), now
            except DaemonUnavailable as error:
                shown = Text(f"{error}; still looking", style="yellow")
            if live is not None:
                live.update(shown, refresh=True)
            else:
                console.print(shown)  # into a pipe: one page after another
            time.sleep(interval_s)


def page(stats: DaemonStats, before: DaemonStats | None, elapsed_s: float, address: str) -> RenderableType:
    """Everything on one screen. With an earlier look, `elapsed_s` ago, rates are those since then."""
    counters = defaultdict(int, stats.counters)  # a daemon of another version may count other things
    parts: list[RenderableType] = [_daemon(stats, address), Text(), _arena(counters)]
    parts += [_traffic(counters, before.counters if before else None, elapsed_s)]
    if stats.storage:
        parts += storage_rows(stats.storage, counters, before.counters if before else None, elapsed_s)
        parts += codec_rows(stats.namespaces)
    for table in (_namespaces(stats.namespaces), _sessions(stats.sessions)):
        parts += [Text(), table]
    return Group(*parts)


def _daemon(stats: DaemonStats, address: str) -> Text:
    text = Text.assemble(("kvtier ", "bold"), f"{stats.version}  {address}  up {show_age(stats.uptime_s)}  ")
    text.append(f"boot {stats.boot_id:016x}", "dim")
    if restarts := stats.counters.get("restarts"):
        kept = stats.counters["restart_kept"]
        text.append(f"  warm restart {restarts}: {kept:,} chunks kept", "dim")
    if stats.counters.get("draining"):
        text.append("  draining", "bold yellow")
    return text


def _arena(counters: dict[str, int]) -> Text:
    total_bytes, used_bytes = counters["data_bytes"], counters["chunk_bytes"]
    share = used_bytes / total_bytes if total_bytes else 0.0
    full = min(_BAR_CELLS, round(share * _BAR_CELLS))
    text = Text.assemble(("arena    ", "bold"), ("█" * full, "cyan"), ("░" * (_BAR_CELLS - full), "dim"))
    text.append(f"  {show_size(used_bytes)} of {show_size(total_bytes)} ({share:.0%}), ")
    text.append(f"{counters['committed_slots']:,} chunks")
    notes = [
        f"{counters[name]:,} {word}"
        for name, word in (
            ("pinned_slots", "pinned"),
            ("reserved_slots", "being written"),
            ("quarantined_slots", "quarantined"),
        )
        if counters[name]
    ]
    if counters["populated_bytes"] < total_bytes:
        notes.append(f"{counters['populated_bytes'] / total_bytes:.0%} populated")
    text.append("".join(f", {note}" for note in notes))
    if counters["population_failed"]:
        text.append("; the rest could not be had, see the daemon's log", "bold red")
    return text


def _traffic(counters: dict[str, int], before: dict[str, int] | None, elapsed_s: float) -> Text:
    def grown(name: str) -> int:
        return counters[name] - (before.get(name, 0) if before else 0)

    asked = grown("hits") + grown("misses")
    text = Text.assemble(("traffic  ", "bold"))
    text.append(f"hit rate {grown('hits') / asked:.1%} of {asked:,} chunks" if asked else "no leases")
    text.append(f", {grown('stores'):,} stored ({show_size(grown('stored_bytes'))})")
    text.append(f", {grown('evictions'):,} evicted, {grown('refusals'):,} refused")
    if requests := grown("ring_requests"):
        text.append(f", ring {grown('ring_busy_ns') / requests / 1000:.1f} us a request")
    if before and elapsed_s > 0:
        text.append(f", {grown('ring_requests') / elapsed_s:,.0f} requests/s", "dim")
    return text


def _namespaces(namespaces: tuple[NamespaceInfo, ...]) -> Table:
    stored = any(info.storage for info in namespaces)
    floored = any(info.floor for info in namespaces)
    right = ["chunk", "chunks", "bytes", "hit rate", "stores", "evictions"]
    right += ["floor"] * floored + ["on storage"] * stored
    table = _table("namespace", "engine", "what it holds", right=tuple(right))
    for info in sorted(namespaces, key=lambda info: -info.bytes):
        asked = info.hits + info.misses
        table.add_row(
            info.id.hex()[:12],
            engine_of(info),
            describe(info),
            show_size(info.chunk_bytes),
            f"{info.chunks:,}",
            show_size(info.bytes),
            f"{info.hits / asked:.1%}" if asked else "-",
            f"{info.stores:,}",
            f"{info.evictions:,}",
            *([show_size(info.floor) if info.floor else "-"] if floored else []),
            *([on_storage(info)] if stored else []),
        )
    return table if namespaces else _none("no namespaces: no engine has stored anything since the start")


def _sessions(sessions: tuple[SessionInfo, ...]) -> Table:
    table = _table(
        "session",
        "client",
        "engine",
        right=("pid", "age", "read leases", "write leases", "pinned", "writing"),
    )
    for info in sessions:
        table.add_row(
            str(info.session),
            shown(info.client, 32),
            shown(info.group, 24),
            str(info.pid or "-"),
            show_age(info.age_s),
            f"{info.read_leases:,}",
            f"{info.write_leases:,}",
            f"{info.pinned_slots:,}",
            f"{info.reserved_slots:,}",
        )
    return table if sessions else _none("no sessions: no engine is attached")


def _table(*left: str, right: tuple[str, ...]) -> Table:
    table = Table(*left, box=None, header_style="bold", pad_edge=False)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _none(text: str) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row(Text(text, style="dim"))
    return table
