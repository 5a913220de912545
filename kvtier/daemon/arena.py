"""The arena from one daemon to the next: whether what one has left can be kept, and what this one leaves."""

from kvtier import logs
from kvtier.config import Config
from kvtier.errors import ConfigError
from kvtier.io import native
from kvtier.io.shm import ArenaFiles


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


def leave(config: Config, files: ArenaFiles) -> None:
    """Close it, and say what stays in memory and how to be rid of that."""
    if left_bytes := files.close():
        logs.get("daemon").info(
            "the arena stays in memory for the next daemon",
            bytes=left_bytes,
            free_it=f"kvtier admin destroy --shm-dir {config.shm_dir}",
        )
