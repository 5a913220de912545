"""`kvtier`: one command a file, imported when it is asked for, so that `kvtier --help` is quick."""

import importlib
import sys
from typing import Final

import click

from kvtier.errors import AlreadyServing, InvalidArgument, KVTierError

_COMMANDS: Final = {
    "serve": "run the daemon of this host",
    "stats": "what the daemon holds and how it is used",
    "ls": "namespaces, or the chunks of one; what lies on storage",
    "verify": "check what lies on storage, or chunks in memory",
    "admin": "drain, evict, clear, destroy",
    "bench": "named benchmarks, each against a reference of the same run",
    "demo": "a real engine, or a real trace, against a daemon of its own",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(f"kvtier.cli.{cmd_name}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from kvtier.version import VERSION

        click.echo(f"kvtier {VERSION}")
        ctx.exit()


_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Its version."
)
def cli() -> None:
    """KV cache of LLM engines in tiers, one daemon per host."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration."""
    try:
        code = cli.main(prog_name="kvtier", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except KVTierError as error:
        for line in str(error).splitlines():
            click.echo(f"kvtier: {line}", err=True)
        sys.exit(2 if isinstance(error, InvalidArgument | AlreadyServing) else 1)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
