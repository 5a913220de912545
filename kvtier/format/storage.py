"""The small readable files below a storage root. docs/formats/segment.md has the whole tree.

`kvtier.json` says that a directory is a root, and of which format; a namespace's `meta.json` is its
fingerprint with the chunk size, one text for one namespace on every host.
"""

import json
import re
from typing import Any, Final

from kvtier.errors import InvalidArgument
from kvtier.format.fingerprint import canonical_json, namespace_id

FORMAT: Final = 1
MARKER_NAME: Final = "kvtier.json"
META_NAME: Final = "meta.json"
META_BYTES_MAX: Final = 128 * 1024
MARKER_BYTES_MAX: Final = 4096
_SEAL: Final = re.compile("(mac|encrypt)-[0-9a-f]{16}")


def namespace_meta(fingerprint_json: str, chunk_bytes: int, seal: str = "") -> str:
    """The text of meta.json; `fingerprint_json` is canonical. seal: as `seal_name` says it, or none."""
    ending = f',"seal":"{seal}"' if seal else ""
    return f'{{"chunk_bytes":{chunk_bytes},"fingerprint":{fingerprint_json}{ending}}}\n'


def seal_of(meta: str) -> str:
    """Which seal and key a sound meta.json names; empty: none."""
    return str(json.loads(meta).get("seal", ""))


def parse_meta(text: str) -> tuple[dict[str, Any], int, bytes]:
    """(fingerprint, chunk_bytes, namespace id) of a meta.json; InvalidArgument says what is wrong with it."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"is not JSON: {error}") from None
    if not isinstance(record, dict) or set(record) - {"seal"} != {"chunk_bytes", "fingerprint"}:
        raise InvalidArgument("has other fields than chunk_bytes, fingerprint and seal")
    fingerprint, chunk_bytes = record["fingerprint"], record["chunk_bytes"]
    if type(chunk_bytes) is not int or chunk_bytes < 1:
        raise InvalidArgument(f"chunk_bytes is {chunk_bytes!r}; a positive integer is wanted")
    canonical = canonical_json(fingerprint)
    seal = record.get("seal", "")
    if not isinstance(seal, str) or ("seal" in record and not _SEAL.fullmatch(seal)):
        raise InvalidArgument(f"seal is {seal!r}; mac- or encrypt- with 16 hex digits is wanted")
    if namespace_meta(canonical, chunk_bytes, seal) != text:
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
