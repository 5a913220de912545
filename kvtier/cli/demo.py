"""`kvtier demo`: a real engine, or with --replay a real trace, against a daemon of its own."""

from typing import Any

import click

from kvtier.sizes import parse_size, show_size


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


@click.command(short_help="a real engine, or a real trace, against a daemon of its own")
@click.option(
    "--replay", is_flag=True, help="Play the agent trace through two client processes, without an engine."
)
@click.option(
    "--dram",
    type=_Size(),
    default="128MiB",
    show_default=True,
    help="Replay: the arena's size. The trace's working set is about eleven times the default.",
)
@click.option(
    "--chunk", type=_Size(), default="16KiB", show_default=True, help="Replay: bytes that stand for a chunk."
)
@click.option(
    "--policy",
    type=click.Choice(["lru", "s3fifo"]),
    default="lru",
    show_default=True,
    help="Replay: who goes first.",
)
@click.option(
    "--storage",
    is_flag=True,
    help="Replay: with storage below DRAM, in a temporary directory; what was evicted comes back from there.",
)
def demo(replay: bool, dram: int, chunk: int, policy: str, storage: bool) -> int:
    """Show the main job on this machine; nothing is left behind. Exit code 1 when anything was wrong."""
    if not replay:
        from kvtier.demo.engine import run_engine_demo

        return run_engine_demo()
    if chunk % 4096 or not chunk:
        raise click.UsageError(f"--chunk {show_size(chunk)} is not a multiple of 4KiB")
    from kvtier.demo.show import run_replay_demo

    return run_replay_demo(dram_bytes=dram, chunk_bytes=chunk, policy=policy, storage=storage)
