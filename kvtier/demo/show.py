"""`kvtier demo --replay`, as people see it: live progress, then what came of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvtier.demo import trace
from kvtier.demo.daemon import temporary_daemon
from kvtier.demo.replay import Replay, play
from kvtier.demo.schedule import Turn, reusable, schedule
from kvtier.errors import KVTierError
from kvtier.sizes import show_size

CHUNK_BLOCKS = 4  # 256 tokens
GAP_S = 20.0  # a new conversation every 20 seconds: nearly all of them at once


def run_replay_demo(
    *,
    dram_bytes: int,
    chunk_bytes: int,
    policy: str = "lru",
    storage: bool = False,
    console: Console | None = None,
) -> int:
    """Play the whole trace and print what came of it. Returns the exit code: 1 when a byte was wrong.

    storage: what DRAM evicts lies in a temporary directory, and comes back from there.
    """
    console = console or Console()
    sessions = trace.load()

    def turns() -> Iterator[Turn]:
        return schedule(sessions, chunk_blocks=CHUNK_BLOCKS, gap_s=GAP_S)

    requests = sum(len(session.requests) for session in sessions)
    asked, answerable, different = reusable(turns())
    working_set = show_size(different * chunk_bytes)
    console.print(
        f"[bold]kvtier replay[/]  {requests:,} requests of {len(sessions)} agent sessions; {asked:,} chunks "
        f"of 256 tokens asked for, {different:,} different ones.\nA chunk is scaled down to "
        f"{show_size(chunk_bytes)}. Working set {working_set}, DRAM {show_size(dram_bytes)}, {policy}, "
        f"{'storage below it' if storage else 'no storage'}, two client processes, every byte verified.\n",
        highlight=False,
    )
    try:
        with _options(policy, storage=storage) as options:
            replay = _played(console, turns(), requests, dram_bytes, chunk_bytes, options)
    except KVTierError as error:
        console.print(f"[bold red]The replay failed:[/] {error}", highlight=False)
        return 1
    console.print(_report(replay, chunk_bytes, answerable / max(1, asked)))
    for fault in replay.faults:
        console.print(f"[bold red]{fault}")
    if not replay.faults:
        console.print("[bold green]Every byte was right, and nothing was left behind.")
    return 1 if replay.faults else 0


@contextmanager
def _options(policy: str, *, storage: bool) -> Iterator[tuple[str, ...]]:
    """The daemon's flags; storage is a directory that is removed afterwards."""
    if not storage:
        yield ("--policy", policy)
        return
    with TemporaryDirectory(prefix="kvt-replay-") as root:
        yield ("--policy", policy, "--storage", root)


def _played(
    console: Console,
    turns: Iterator[Turn],
    requests: int,
    dram_bytes: int,
    chunk_bytes: int,
    options: tuple[str, ...],
) -> Replay:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(
            "hit rate [bold]{task.fields[hit_rate]:.1%}[/]  simulated {task.fields[simulated_h]:.1f} h"
        ),
        TimeElapsedColumn(),
    )
    with (
        temporary_daemon(str(dram_bytes), *options) as daemon,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task("requests", total=requests, hit_rate=0.0, simulated_h=0.0)

        def show(replay: Replay) -> None:
            progress.update(
                task,
                completed=replay.requests,
                hit_rate=replay.hit_rate,
                simulated_h=replay.simulated_s / 3600,
            )

        return play(daemon, turns, chunk_bytes=chunk_bytes, progress=show)


def _report(replay: Replay, chunk_bytes: int, answerable: float) -> Table:
    total = replay.total
    counters = replay.stats.counters if replay.stats else {}
    before, after = replay.memory[0], replay.memory[-1]
    arena_bytes, index_bytes = counters["data_bytes"], counters["index_bytes"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    rows = [
        (
            "requests",
            f"{replay.requests:,} in {replay.wall_s:.1f} s, {replay.simulated_s / 3600:.1f} simulated hours",
        ),
        ("hit rate", f"{replay.hit_rate:.1%} of the chunks (memory without end: {answerable:.1%})"),
        (
            "loaded",
            f"{total.loaded:,} chunks, {show_size(total.loaded * chunk_bytes)} verified at "
            f"{show_size(total.loaded * chunk_bytes / max(total.load_s, 1e-9))}/s a process; "
            f"{total.foreign:,} of them written by the other process",
        ),
        (
            "stored",
            f"{total.stored:,} chunks, {show_size(total.stored * chunk_bytes)} at "
            f"{show_size(total.stored * chunk_bytes / max(total.store_s, 1e-9))}/s a process; "
            f"{total.present:,} were there already, {total.pending:,} being written, "
            f"{total.no_space:,} without space",
        ),
        *_storage_rows(replay),
        ("evicted", f"{counters['evictions']:,} chunks, {show_size(counters['evicted_bytes'])}"),
        ("wrong bytes", f"{total.wrong:,} chunks; changed under a lease: {total.lost:,}"),
        (
            "daemon",
            f"own memory {show_size(before['anon'])} before, {show_size(after['anon'])} after; "
            f"arena {show_size(arena_bytes)}, index {show_size(index_bytes)} "
            f"({index_bytes / counters['slots_max']:.0f} bytes a chunk)",
        ),
        ("left behind", ", ".join(replay.held) or "no session, lease, pin or reserved slot"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _storage_rows(replay: Replay) -> list[tuple[str, str]]:
    counters = replay.stats.counters if replay.stats else {}
    if "storage_promoted_chunks" not in counters:
        return []
    total = replay.total
    written, read = counters["storage_demoted_chunks"], counters["storage_promoted_chunks"]
    return [
        (
            "storage",
            f"{written:,} chunks written, {read:,} read back, {total.missed:,} leased and not arrived; "
            f"of {total.looked_up:,} chunks that a lookup found, {total.below:,} were not in DRAM",
        )
    ]
