"""The machine a number was taken on."""

import os
import platform
import shutil
from pathlib import Path
from typing import Any, Final

from kvtier.io import native

SHM: Final = Path("/dev/shm")  # noqa: S108 - where every arena lies, not a place for temporary files


def describe() -> dict[str, Any]:
    """CPU, cores, memory, kernel, /dev/shm (size, huge pages), Python, copy kernel."""
    engine = native.CopyEngine(None, threads=1)
    kernel = engine.capabilities()["kernel"]
    engine.close()
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "cores": cores(),
        "memory_bytes": _kib("MemTotal"),
        "kernel": platform.release(),
        "shm_bytes": shutil.disk_usage(SHM).total,
        "shm_huge_pages": _chosen(Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        "huge_pages": _chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "python": platform.python_version(),
        "copy_kernel": kernel,
    }


def summary(machine: dict[str, Any]) -> str:
    """One line of it."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {machine['kernel']}, shm huge pages {machine['shm_huge_pages']}, "
        f"Python {machine['python']}, copies by {machine['copy_kernel']}"
    )


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def free_bytes() -> int:
    """Memory that an arena could take now: what is available, and what /dev/shm has left."""
    return min(_kib("MemAvailable"), shutil.disk_usage(SHM).free)


def _field(path: Path, name: str) -> str:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _kib(name: str) -> int:
    return int(_field(Path("/proc/meminfo"), name).split()[0]) << 10


def _chosen(path: Path) -> str:
    """The option in brackets of a kernel setting."""
    if not path.exists():
        return "unknown"
    _, _, rest = path.read_text().partition("[")
    return rest.partition("]")[0] or "unknown"
