"""The arena from one daemon to the next: whether what one has left can be kept, and what this one leaves."""

import asyncio
from typing import Final

from kvtier import logs
from kvtier.config import Config
from kvtier.errors import ConfigError
from kvtier.io import native
from kvtier.io.shm import ArenaFiles

DAMAGE_LOOK_S: Final = 1.0


def why_not_kept(config: Config, files: ArenaFiles, host_boot: bytes) -> str:
    """In words, with the field and both values; empty: they can be. ConfigError: none can be made."""
    if files.unfit:
        return files.unfit
    try:
        return native.why_not_kept(
            data_fd=files.data_fd,
            meta_fd=files.meta_fd,
            dram_bytes=config.dram,
            slab_bytes=config.slab,
            slots_max=config.slots_max,
            host_boot=host_boot,
        )
    except (ValueError, OSError, RuntimeError) as error:
        raise ConfigError(f"the arena cannot be made: {error}") from None


async def watch_damage(store: native.Store) -> None:
    """A line in the log for each chunk that was dropped because its checksum did not hold."""
    while True:
        for chunk in store.take_damaged():
            logs.get("daemon").error(
                "a chunk in memory was damaged, and was dropped",
                namespace=chunk["namespace"].hex(),
                key=chunk["key"].hex(),
                offset=chunk["offset"],
            )
        await asyncio.sleep(DAMAGE_LOOK_S)


def leave(config: Config, files: ArenaFiles) -> None:
    """Close it, and say what stays in memory and how to be rid of that."""
    if left_bytes := files.close():
        logs.get("daemon").info(
            "the arena stays in memory for the next daemon",
            bytes=left_bytes,
            free_it=f"kvtier admin destroy --shm-dir {config.shm_dir}",
        )
