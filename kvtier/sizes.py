"""Sizes and durations as people write them: `64GiB`, `512 MiB`, `10s`, `250ms`, `1h`."""

import re
from typing import Final

_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{p}ib": 1 << (10 * (i + 1)) for i, p in enumerate("kmgt")},
    **{f"{p}b": 1000 ** (i + 1) for i, p in enumerate("kmgt")},
}
_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)


def parse_size(text: str | int) -> int:
    """Bytes; a bare number is bytes. ValueError says what is allowed."""
    value, unit = _split(text, "a size such as 64GiB, 512MiB or a number of bytes")
    factor = _SIZE_UNITS.get(unit.lower())
    if factor is None:
        raise ValueError(f"has the unknown unit {unit!r}; allowed are B, KiB, MiB, GiB, TiB, KB, MB, GB, TB")
    size_bytes = value * factor
    if size_bytes != int(size_bytes) or size_bytes >= 1 << 63:
        raise ValueError("is not a whole number of bytes below 8 EiB")
    return int(size_bytes)


def parse_duration(text: str | float) -> float:
    """Seconds; a bare number is seconds. ValueError says what is allowed."""
    value, unit = _split(text, "a duration such as 10s, 250ms, 5m or a number of seconds")
    factor = _DURATION_UNITS.get(unit.lower()) if unit else 1.0
    if factor is None:
        raise ValueError(f"has the unknown unit {unit!r}; allowed are ms, s, m, h")
    return value * factor


def show_size(size_bytes: float) -> str:
    """`1.5 GiB`: three significant digits at most, binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1024 or unit == "TiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if size_bytes >= 100 or unit == "B" else f"{size_bytes:.3g} {unit}"


def show_age(age_s: float) -> str:
    """`3 s`, `12 min`, `5 h`, `2 d`."""
    for factor, unit, limit_s in ((1, "s", 120), (60, "min", 7200), (3600, "h", 172800)):
        if age_s < limit_s:
            return f"{age_s / factor:.0f} {unit}"
    return f"{age_s / 86400:.0f} d"


def _split(text: str | float, wanted: str) -> tuple[float, str]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"is not {wanted}")
    if isinstance(text, int | float):
        if not 0 <= text < float("inf"):
            raise ValueError(f"is not {wanted}")
        return text, ""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"is not {wanted}")
    number = match.group(1)
    return (float(number) if "." in number else int(number)), match.group(2)
