"""What the commands that talk to a running daemon share."""

from collections.abc import Callable
from typing import Any

import click

from kvtier.address import default_address


def address_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--address, as `kvtier serve` has it."""
    return click.option(
        "--address",
        default=default_address,
        metavar="unix:PATH|HOST:PORT",
        help="The daemon's address  [env: KVTIER_ADDRESS; default: this user's socket]",
    )(command)
