"""`kvtier bench`: named questions, each answered beside a reference of the same run."""

import json
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvtier.bench import machine, table
from kvtier.bench.registry import BENCHES, Bench
from kvtier.bench.report import BenchSkipped, Report, Result
from kvtier.bench.scale import Scale

_WIDTH: Final = 130
_MARKS: Final = {True: "[green]✓[/]", False: "[bold red]✗[/]", None: ""}


@click.command(short_help="named benchmarks, each against a reference of the same run")
@click.argument("name", type=click.Choice(["list", "all", *BENCHES]), metavar="NAME|list|all")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a benchmark, one a line.")
@click.option("--quick", is_flag=True, help="Small sizes: shows that it runs; the numbers mean little.")
@click.option("--full", is_flag=True, help="Also the sizes that need much memory.")
@click.option(
    "--write",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also put the table into this Markdown file, between the markers that name the benchmark.",
)
@click.option("--seconds", type=click.FloatRange(0.1, 86400), help="How long load runs  [default: 60]")
@click.option("--engines", type=click.IntRange(1, 64), help="How many engines load has  [default: 2]")
def bench(
    name: str, as_json: bool, quick: bool, full: bool, write: Path | None, **options: float | None
) -> int:
    """Run one benchmark, or all; `list` explains them.

    Exit code 0 whether or not a budget holds; 1 when a benchmark cannot run here (`all` goes on without it).
    """
    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    if write and name in ("list", "all"):
        raise click.UsageError("--write takes the name of one benchmark")
    given = {option: value for option, value in options.items() if value is not None}
    if given and (name not in BENCHES or not given.keys() <= set(BENCHES[name].options)):
        raise click.UsageError(f"bench {name} does not take {', '.join(f'--{option}' for option in given)}")
    scale = Scale.QUICK if quick else Scale.FULL if full else Scale.NORMAL
    if name == "list":
        _list(as_json)
        return 0
    facts = machine.describe()
    if not as_json:
        _console().print(machine.summary(facts), style="dim", highlight=False)
    if name != "all":
        results = _run(BENCHES[name], scale, facts, as_json, given)
        if results and write:
            command = f"kvtier bench {name}{' --quick' if quick else ' --full' if full else ''}"
            table.write(write, name, results, facts, command)
        return 0 if results else 1
    for entry in BENCHES.values():
        _run(entry, scale, facts, as_json, {})
    return 0


def _console() -> Console:
    """As wide as the tables when nobody watches."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _list(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({entry.name: entry.explanation() for entry in BENCHES.values()}))
        return
    console = _console()
    for entry in BENCHES.values():
        console.print(f"[bold cyan]{entry.name}[/]")
        for line in entry.explanation().splitlines():
            console.print(f"  {escape(line)}", highlight=False)
        console.print()


def _run(
    entry: Bench, scale: Scale, facts: dict[str, object], as_json: bool, options: dict[str, float]
) -> list[Result]:
    """Nothing when it cannot run here, which has been said then."""
    try:
        if as_json:
            results = entry.run(scale, **options)
        else:
            with _console().status(f"{entry.name}: {entry.question}"):
                results = entry.run(scale, **options)
    except BenchSkipped as reason:
        click.echo(f"kvtier: bench {entry.name} {reason}", err=True)
        return []
    if as_json:
        click.echo(json.dumps(Report(entry.name, facts, tuple(results)).record()))
    else:
        _console().print(_table(entry, results), "")
    return results


def _table(entry: Bench, results: list[Result]) -> Table:
    shown = Table(title=f"{entry.name}: {entry.question}", title_justify="left", box=None, pad_edge=False)
    shown.add_column("case")
    for heading in ("value", "reference"):
        shown.add_column(heading, justify="right")
    shown.add_column("of", style="dim")
    for heading in ("ratio", "budget"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for result in results:
        reference = result.reference_value
        shown.add_row(
            escape(result.case),
            f"[bold]{table.show(result.value)}[/] {result.unit}",
            "" if reference is None else table.show(reference),
            escape(result.reference),
            "" if result.ratio is None else f"{result.ratio:.2f} x",
            "" if result.budget is None else escape(result.budget.show(result.unit)),
            _MARKS[result.ok],
        )
    return shown
