"""`kvtier serve`: every field of the configuration is a flag."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvtier import config, logs


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    for name, field in reversed(config.Config.model_fields.items()):
        text = f"{field.description}  [env: {config.ENV_PREFIX}{name.upper()}; default: {_default(name)}]"
        command = click.option(
            f"--{name.replace('_', '-')}", name, metavar=_METAVARS.get(name, "TEXT"), help=text
        )(command)
    return command


_METAVARS = {
    "address": "unix:PATH|HOST:PORT",
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "tls_ca": "FILE",
    "dram": "SIZE",
    "shm_dir": "DIR",
    "http": "HOST:PORT|off",
    "policy": "lru|s3fifo",
    "slab": "SIZE",
    "slots_max": "N",
    "floors": "NAME=SIZE,...",
    "floor": "SIZE",
    "floor_idle": "DURATION",
    "storage": "DIR",
    "storage_segment": "SIZE",
    "storage_quota": "SIZE",
    "storage_namespace_quota": "SIZE",
    "storage_codec": "raw|lz4|auto",
    "storage_seal": "none|mac|encrypt",
    "storage_key": "FILE",
    "storage_poll": "DURATION",
    "storage_dead_after": "DURATION",
    "storage_threads": "N",
    "lease_timeout": "DURATION",
    "drain_timeout": "DURATION",
    "log_level": "debug|info|warning|error",
    "log_format": "auto|human|json",
}


def _default(name: str) -> str:
    if name == "dram":
        return "4GiB"
    if name == "floors":
        return "none"
    if name == "storage_segment":
        return "256MiB"
    return str(config.Config.model_fields[name].get_default(call_default_factory=True, validated_data={}))


@click.command(short_help="run the daemon of this host")
@_flags
@click.option(
    "--config",
    "file",
    metavar="FILE",
    envvar="KVTIER_CONFIG",
    type=click.Path(path_type=Path),
    help="TOML file with the same fields  [env: KVTIER_CONFIG]",
)
@click.option("--fresh", is_flag=True, help="Start with an empty arena, whatever an earlier daemon has left.")
def serve(file: Path | None, fresh: bool, **flags: Any) -> None:
    """Run the daemon of this host until SIGTERM.

    What an earlier daemon has left in --shm-dir is served again, if it was made with the same sizes since the
    host was started; it stays there after a stop as well (kvtier admin destroy removes it).

    One line on standard output says that it is ready; the log goes to standard error. SIGTERM and SIGINT
    drain and stop it, a second one stops at once.
    """
    settings = config.load(flags, file=file)
    logs.configure(settings.log_level, settings.log_format)
    for variable, meant in config.unknown_variables(os.environ).items():
        logs.get("config").warning("unknown environment variable", variable=variable, meant=meant)

    from kvtier.daemon.server import Daemon
    from kvtier.daemon.server import serve as run

    def ready(daemon: Daemon) -> None:
        line = f"kvtier ready address={settings.address} pid={os.getpid()}"
        if daemon.http_port is not None:
            line += f" http={settings.http.rpartition(':')[0]}:{daemon.http_port}"
        click.echo(line)

    run(settings, ready, fresh=fresh)
