"""`kvtier admin`: what an operator does to a running daemon."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from kvtier.cli.connect import address_option
from kvtier.cli.ls import resolve
from kvtier.client.channel import ControlChannel
from kvtier.config import default_shm_dir
from kvtier.errors import ConfigError, InvalidArgument
from kvtier.io.shm import ArenaFiles
from kvtier.sizes import parse_duration, parse_size, show_size

ALL_BYTES: Final = 1 << 62
Number = TypeVar("Number", int, float)


@click.group(short_help="drain, flush, evict, floor, clear, destroy")
def admin() -> None:
    """Change what a running daemon does or holds."""


@admin.command()
@address_option
@click.option(
    "--deadline", default="10s", show_default=True, help="How long to wait for the leases that are out."
)
def drain(address: str, deadline: str) -> int:
    """Grant nothing new, and wait for the leases that are out. Exit code 1 when some are left."""
    with ControlChannel(address) as channel:
        left = channel.drain(_parsed(parse_duration, "deadline", deadline))
    click.echo(f"leases left: {left}")
    return 1 if left else 0


@admin.command()
@address_option
@click.option("--deadline", default="60s", show_default=True, help="How long to wait for storage.")
def flush(address: str, deadline: str) -> int:
    """Wait until every chunk committed so far is on storage, or dropped. Exit code 1 when not in time."""
    with ControlChannel(address) as channel:
        before = channel.daemon_stats()
        if not before.storage:
            raise InvalidArgument(f"the daemon at {address} has no storage (kvtier serve --storage)")
        done = channel.flush(_parsed(parse_duration, "deadline", deadline))
        after = channel.daemon_stats()
    written = after.counters["storage_demoted_bytes"] - before.counters["storage_demoted_bytes"]
    click.echo(f"{'flushed' if done else 'not all flushed'}: {show_size(written)} written meanwhile")
    return 0 if done else 1


@admin.command()
@click.argument("namespace")
@address_option
@click.option("--bytes", "size", help="How much, e.g. 10GiB  [default: all that is not in use]")
def evict(namespace: str, address: str, size: str | None) -> None:
    """Evict unpinned chunks of NAMESPACE (the start of its id is enough), coldest first."""
    size_bytes = ALL_BYTES if size is None else _parsed(parse_size, "bytes", size)
    with ControlChannel(address, timeout_s=60) as channel:
        info = resolve(namespace, channel.list_namespaces())
        evicted_bytes = channel.evict(info.id, size_bytes)
    click.echo(f"evicted {show_size(evicted_bytes)} of {info.id.hex()}")


@admin.command()
@click.argument("namespace")
@click.argument("size")
@address_option
def floor(namespace: str, size: str, address: str) -> None:
    """Leave SIZE of the arena to NAMESPACE (the start of its id is enough), whatever others store; 0: none.

    Holds for what it stores from now on, until another daemon opens it, whose configuration says (floors).
    """
    size_bytes = _parsed(parse_size, "size", size)
    with ControlChannel(address) as channel:
        info = resolve(namespace, channel.list_namespaces())
        channel.set_floor(info.id, size_bytes)
    click.echo(f"floor of {info.id.hex()}: {show_size(size_bytes)}")


@admin.command()
@click.argument("namespace")
@address_option
def clear(namespace: str, address: str) -> None:
    """Make every chunk of NAMESPACE (the start of its id is enough) unreadable on this host, at once.

    Other hosts of the same storage go on with what they have; from now on they and this one share nothing of
    NAMESPACE until the daemons start anew. To be rid of it everywhere, clear it on each host. One that lies
    on storage alone is named by its whole id.
    """
    with ControlChannel(address, timeout_s=60) as channel:
        whole = re.fullmatch("[0-9a-fA-F]{32}", namespace)
        id = bytes.fromhex(namespace) if whole else resolve(namespace, channel.list_namespaces()).id
        chunks = channel.clear_namespace(id)
    click.echo(f"cleared {chunks:,} chunks of {id.hex()}")


@admin.command()
@click.option(
    "--shm-dir",
    type=click.Path(path_type=Path),
    envvar="KVTIER_SHM_DIR",
    help="The arena's directory, as given to kvtier serve  [env: KVTIER_SHM_DIR; default: the daemon's]",
)
def destroy(shm_dir: Path | None) -> None:
    """Remove the arena that a daemon has left behind, and so free its memory. Refused while one serves it."""
    directory = default_shm_dir() if shm_dir is None else shm_dir
    if not directory.is_dir():
        raise ConfigError(f"shm_dir = {str(directory)!r} is not a directory")
    files = ArenaFiles(directory)
    try:
        files.remove()
    finally:
        files.close()
    click.echo(f"removed {show_size(files.found_bytes)} in {directory}")


def _parsed(parse: Callable[[str], Number], field: str, text: str) -> Number:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{field} = {text!r} {error}") from None
