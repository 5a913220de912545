"""Floors as the configuration names them: which bytes of the arena are left to which namespace."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvtier.sizes import parse_size, show_size

ID_DIGITS_MIN: Final = 8
"""So many leading digits of an id name a namespace; fewer are taken for a label alone."""

_WANTED: Final = "is not NAME=SIZE, NAME=SIZE, such as llama-70b=64GiB"


@dataclass(frozen=True, slots=True)
class Floors:
    """`named` for the namespaces it names, by label or by the start of the id; `default` for all others."""

    default: int = 0
    named: Mapping[str, int] = field(default_factory=dict)

    def of(self, id: bytes, label: str) -> int:
        """Bytes; a label counts before an id, and of two that fit an id the longer one."""
        if label in self.named:
            return self.named[label]
        starts = [name for name in self.named if len(name) >= ID_DIGITS_MIN and id.hex().startswith(name)]
        return self.named[max(starts, key=len)] if starts else self.default


def parse_floors(value: str | Mapping[str, Any]) -> dict[str, int]:
    """Text or a table of TOML -> name: bytes. ValueError says what is allowed."""
    items: list[tuple[str, Any]] = []
    if isinstance(value, str):
        for part in filter(None, (part.strip() for part in value.split(","))):
            name, separator, size = part.rpartition("=")
            if not separator:
                raise ValueError(_WANTED)
            items.append((name.strip(), size.strip()))
    elif isinstance(value, Mapping):
        items = list(value.items())
    else:
        raise ValueError(_WANTED)
    floors: dict[str, int] = {}
    for name, size in items:
        if not name:
            raise ValueError(_WANTED)
        if name in floors:
            raise ValueError(f"names {name!r} twice")
        try:
            floors[name] = parse_size(size)
        except ValueError as error:
            raise ValueError(f"has for {name!r} {str(size)!r}, which {error}") from None
    return floors


def check_floors(floors: Mapping[str, int], dram_bytes: int) -> None:
    """ValueError when all of them are more than there is."""
    total_bytes = sum(floors.values())
    if total_bytes > dram_bytes:
        raise ValueError(f"is {show_size(total_bytes)} together, which exceeds dram, {show_size(dram_bytes)}")
