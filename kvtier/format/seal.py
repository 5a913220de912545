"""The key of a storage root: how it is written in a file, and the name it has in a namespace's meta.json."""

import binascii
import hmac
from typing import Final

from kvtier.errors import InvalidArgument

KEY_BYTES: Final = 32


def parse_key(content: bytes) -> bytes:
    """A key file: 32 bytes, or 64 hexadecimal digits. InvalidArgument does not repeat what it holds."""
    if len(content) == KEY_BYTES:
        return content
    digits = content.strip()
    try:
        key = binascii.unhexlify(digits)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidArgument(
            f"has {len(content)} bytes that are no key; 32 bytes, or 64 hexadecimal digits, are wanted"
        )
    return key


def seal_name(seal: str, key: bytes) -> str:
    """`mac-<16 hex digits>`: the kind of seal, and which key it is. Nothing of the key can be had from it."""
    return f"{seal}-{hmac.digest(key, b'kvtier key name', 'sha256')[:8].hex()}"
