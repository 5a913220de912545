"""Which weights a model has: without this, two checkpoints of one architecture would share a cache.

From the most certain to the least: what the operator says (`weights_id`), the commit of a hub repository, a
digest of local files. Where nothing tells, the identity is random: the engine shares with nobody, loudly.
"""

import hashlib
import logging
import os
import secrets
from pathlib import Path

logger = logging.getLogger(__name__)

SAMPLE_BYTES = 4096
SAMPLES = 64  # per file
HEADER_BYTES_MAX = 64 << 20
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def weights_identity(
    model: str,
    *,
    weights_id: str | None,
    revision: str | None,
    commit: str | None,
    load_format: str,
    seed: int | None,
    setting: str = "kv_connector_extra_config",
) -> str:
    """A string that is the same only for the same weights.

    model: directory, file or hub name; commit: of the hub snapshot, as loaded; seed: of made-up weights;
    setting: where the operator can say it.
    """
    if weights_id:
        return f"operator:{weights_id}"
    if load_format == "dummy":
        return f"dummy:{seed}"
    path = Path(model)
    if path.exists():
        return f"files:{digest_of(path)}"
    if commit:
        return f"commit:{commit}"
    if revision and len(revision) == 40 and all(c in "0123456789abcdef" for c in revision):
        return f"commit:{revision}"
    logger.warning(
        "kvtier: cannot tell which weights %s has (no local files, no commit): this engine shares its cache "
        "with no other process. Set weights_id in %s, or a commit as --revision.",
        model,
        setting,
    )
    return f"unknown:{secrets.token_hex(16)}"


def digest_of(path: Path) -> str:
    """Digest of a checkpoint: configuration in full; of weight files name, size, header, samples."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    for file in files:
        weights = file.suffix in WEIGHT_SUFFIXES
        if not weights and file.suffix != ".json":
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            if weights:
                _sample(digest, stream.fileno(), size, header_bytes=_header_bytes(file, stream.fileno()))
            else:
                digest.update(stream.read())
    return digest.hexdigest()


def _header_bytes(file: Path, fd: int) -> int:
    """Of a safetensors file: names, types and places of its tensors."""
    if file.suffix != ".safetensors":
        return SAMPLE_BYTES
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    return min(8 + length, HEADER_BYTES_MAX)


def _sample(digest: "hashlib._Hash", fd: int, size: int, *, header_bytes: int) -> None:
    digest.update(os.pread(fd, header_bytes, 0))
    last = max(0, size - SAMPLE_BYTES)
    for number in range(SAMPLES):
        digest.update(os.pread(fd, SAMPLE_BYTES, last * number // (SAMPLES - 1)))
