"""Names below a root. What is none of these to the letter is foreign."""

import re
from dataclasses import dataclass
from typing import Final

LEASE_NAME: Final = "lease"
TAIL_NAME: Final = "tail.idx"
HOSTS_NAME: Final = "hosts"
VERSION_NAME: Final = "v1"

_NUMBER_MAX: Final = (1 << 64) - 1
_HEX_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_HOST: Final = re.compile(r"([0-9a-f]{32})(?:\.adopt\.([0-9a-f]{32}))?", re.ASCII)
_NUMBERED: Final = re.compile(r"seg-([0-9]{10,20})\.(kvs|idx)", re.ASCII)
_EPOCH: Final = re.compile(r"epoch-([1-9][0-9]{0,19})", re.ASCII)
_TEMPORARY: Final = re.compile(r"\.tmp-[0-9]+-[0-9a-f]{16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HostName:
    """Whose segments a directory below hosts/ holds, and who has taken them over."""

    host: bytes
    adopter: bytes | None


def parse_id(name: str) -> bytes | None:
    """16 bytes of 32 hex digits."""
    return bytes.fromhex(name) if _HEX_ID.fullmatch(name) else None


def parse_host(name: str) -> HostName | None:
    """`<host>` or `<host>.adopt.<adopter>`."""
    match = _HOST.fullmatch(name)
    if match is None:
        return None
    return HostName(bytes.fromhex(match[1]), bytes.fromhex(match[2]) if match[2] else None)


def segment_name(number: int) -> str:
    """Of a segment's file."""
    return f"seg-{number:010}.kvs"


def index_name(number: int) -> str:
    """Of a sealed segment's index."""
    return f"seg-{number:010}.idx"


def parse_segment(name: str) -> int | None:
    """The number of a segment's file."""
    return _numbered(name, "kvs")


def parse_index(name: str) -> int | None:
    """The number of the segment whose index it is."""
    return _numbered(name, "idx")


def parse_epoch(name: str) -> int | None:
    """The number of an epoch's file."""
    match = _EPOCH.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= _NUMBER_MAX else None


def is_temporary(name: str) -> bool:
    """Left by a publish that never ended, or that goes on right now."""
    return _TEMPORARY.fullmatch(name) is not None


def _numbered(name: str, ending: str) -> int | None:
    match = _NUMBERED.fullmatch(name)
    if match is None or match[2] != ending:
        return None
    number = int(match[1])
    canonical = f"seg-{number:010}.{ending}" == name
    return number if canonical and 1 <= number <= _NUMBER_MAX else None
