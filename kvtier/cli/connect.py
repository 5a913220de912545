"""What the commands that talk to a running daemon share."""

from collections.abc import Callable
from typing import Any

import click
from rich.text import Text

from kvtier.address import default_address


def address_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--address, as `kvtier serve` has it."""
    return click.option(
        "--address",
        default=default_address,
        metavar="unix:PATH|HOST:PORT",
        help="The daemon's address; KVTIER_TLS_CA, _CERT and _KEY name the files of one that has TLS  "
        "[env: KVTIER_ADDRESS; default: this user's socket]",
    )(command)


def shown(text: str, chars_max: int) -> Text:
    """What a peer wrote, for a terminal: no markup, no control characters, not long."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return Text(printable if len(printable) <= chars_max else printable[: chars_max - 1] + "…")
