"""Does the arena fit into this machine? Asked before the first page is touched, when the lock is held."""

from pathlib import Path

from kvtier.config import Config
from kvtier.errors import ConfigError
from kvtier.io import machine
from kvtier.sizes import show_size

# Index and queues: 96 bytes a chunk, a chunk every 16 KiB at the default slots_max.
_INDEX_BYTES_A_CHUNK = 96
_DRAM_BYTES_A_CHUNK = 16 << 10


def index_bytes(config: Config) -> int:
    """Memory the index of this configuration takes beside the arena, at most."""
    return (config.slots_max or config.dram // _DRAM_BYTES_A_CHUNK) * _INDEX_BYTES_A_CHUNK


def check_machine(config: Config) -> None:
    """ConfigError when the machine, or the cgroup, can never hold this arena."""
    limit_bytes, what = machine.memory_limit_bytes()
    _check(config, limit_bytes, what)


def check_free(config: Config, kept_bytes: int = 0) -> str | None:
    """ConfigError when it does not fit right now; a warning in words when the mount is no shared memory.

    kept_bytes: memory of the arena that is there already.
    """
    available_bytes = machine.memory_available_bytes() + kept_bytes
    _check(config, available_bytes, "the memory that is available now")
    _check(config, machine.free_bytes(config.shm_dir) + kept_bytes, f"the free space of {config.shm_dir}")
    kind = machine.filesystem(Path(config.shm_dir).resolve())
    if kind not in ("tmpfs", "ramfs", "hugetlbfs", ""):
        return f"shm_dir lies on {kind}, not on a tmpfs: the arena will be written to disk"
    return None


def _check(config: Config, limit_bytes: int, what: str) -> None:
    need_bytes = config.dram + index_bytes(config)
    if need_bytes > limit_bytes:
        raise ConfigError(
            f"dram = {show_size(config.dram)} (with its index {show_size(need_bytes)}) is larger than "
            f"{what}, {show_size(limit_bytes)}"
        )
