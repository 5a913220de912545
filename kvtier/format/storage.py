"""The small readable files below a storage root. docs/formats/segment.md has the whole tree.

`kvtier.json` says that a directory is a root, and of which format; a namespace's `meta.json` is its
fingerprint with the chunk size, one text for one namespace on every host.
"""

import json
from typing import Any, Final

from kvtier.errors import InvalidArgument
from kvtier.format.fingerprint import canonical_json, namespace_id

FORMAT: Final = 1
MARKER_NAME: Final = "kvtier.json"
META_NAME: Final = "meta.json"
META_BYTES_MAX: Final = 128 * 1024
MARKER_BYTES_MAX: Final = 4096


def namespace_meta(fingerprint_json: str, chunk_bytes: int) -> str:
    """The text of meta.json; `fingerprint_json` is canonical."""
    return f'{{"chunk_bytes":{chunk_bytes},"fingerprint":{fingerprint_json}}}\n'


def parse_meta(text: str) -> tuple[dict[str, Any], int, bytes]:
    """(fingerprint, chunk_bytes, namespace id) of a meta.json; InvalidArgument says what is wrong with it."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"is not JSON: {error}") from None
    if not isinstance(record, dict) or set(record) != {"chunk_bytes", "fingerprint"}:
        raise InvalidArgument("has other fields than chunk_bytes and fingerprint")
    fingerprint, chunk_bytes = record["fingerprint"], record["chunk_bytes"]
    if type(chunk_bytes) is not int or chunk_bytes < 1:
        raise InvalidArgument(f"chunk_bytes is {chunk_bytes!r}; a positive integer is wanted")
    canonical = canonical_json(fingerprint)
    if namespace_meta(canonical, chunk_bytes) != text:
        raise InvalidArgument("is not in canonical form: sorted keys, no spaces, one newline at the end")
    return fingerprint, chunk_bytes, namespace_id(canonical)


def parse_marker(text: str) -> None:
    """Nothing when this version can use the root; InvalidArgument says why not."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"is not JSON: {error}") from None
    found = record.get("format") if isinstance(record, dict) else None
    if type(found) is not int or found < 1:
        raise InvalidArgument(f'has no "format" of 1 or more: {text[:80]!r}')
    if found > FORMAT:
        raise InvalidArgument(f"format is {found}; this version of kvtier reads format {FORMAT}")
