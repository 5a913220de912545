"""From a model's fingerprint to a namespace's id.

The fingerprint is a record of everything that changes the bytes of a chunk. Its canonical form is JSON with
sorted keys, no spaces, UTF-8, without floats that JSON cannot carry; the namespace id is the first 16 bytes
of the SHA-256 of that text. Equal records give equal ids on every host and in every version of kvtier.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from kvtier.errors import InvalidArgument
from kvtier.types import NAMESPACE_ID_BYTES

FINGERPRINT_BYTES_MAX = 64 * 1024
DEPTH_MAX = 16


def canonical_json(fingerprint: Mapping[str, Any]) -> str:
    """The one text of this record.

    Values: str, int, bool, None, finite float, and lists, tuples and string-keyed mappings of these. Raises
    InvalidArgument naming the path of what is none of them (tuples are written as lists).
    """
    if not isinstance(fingerprint, Mapping):
        raise InvalidArgument(f"fingerprint is a {type(fingerprint).__name__}; a mapping is wanted")
    if not fingerprint:
        raise InvalidArgument("fingerprint is empty; it must name what changes the bytes of a chunk")
    plain = _plain(fingerprint, "fingerprint", 0)
    try:
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"fingerprint is not UTF-8 text: {error.reason}") from None
    if size_bytes > FINGERPRINT_BYTES_MAX:
        raise InvalidArgument(
            f"fingerprint has {size_bytes} bytes; at most {FINGERPRINT_BYTES_MAX} are allowed"
        )
    return text


def namespace_id(canonical: str) -> bytes:
    """The 16-byte id of a canonical fingerprint."""
    return hashlib.sha256(canonical.encode()).digest()[:NAMESPACE_ID_BYTES]


def parse_canonical(text: str) -> dict[str, Any]:
    """The record of a text that came from a peer; InvalidArgument when it is not in canonical form."""
    if len(text) > FINGERPRINT_BYTES_MAX:
        raise InvalidArgument(
            f"fingerprint_json has {len(text)} characters; at most {FINGERPRINT_BYTES_MAX} are allowed"
        )
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"fingerprint_json is not JSON: {error}") from None
    if not isinstance(record, dict) or canonical_json(record) != text:
        raise InvalidArgument("fingerprint_json is not canonical; sorted keys, no spaces, UTF-8 are wanted")
    return record


def _plain(value: Any, path: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise InvalidArgument(f"{path} lies deeper than {DEPTH_MAX} levels")
    # Exact types: an enum or a numpy scalar may print the same today and differently in another release.
    if value is None or type(value) in (str, int, bool):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise InvalidArgument(f"{path} is {value}; a finite number is wanted")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise InvalidArgument(f"{path} has the key {key!r}; keys must be text")
        return {key: _plain(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise InvalidArgument(
        f"{path} is a {type(value).__name__}; allowed are text, integers, finite floats, booleans, null, "
        "lists and mappings of these"
    )
