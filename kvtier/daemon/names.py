"""What peers call themselves and their things; it goes to terminals and logs."""

from typing import Final

NAME_CHARS_MAX: Final = 128


def shown(name: str) -> str:
    """The same, printable and not long."""
    return "".join(c if c.isprintable() else "?" for c in name[:NAME_CHARS_MAX])
