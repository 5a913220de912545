"""What this machine can give: memory, and space on a mount."""

import os
from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def memory_limit_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> tuple[int, str]:
    """The most memory this process can ever have, and what sets it."""
    limits = [(_meminfo(proc)["MemTotal"], "the machine's memory")]
    group = _group_dir(proc, cgroup)
    while group is not None and cgroup in (group, *group.parents):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                text = (group / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():
                limits.append((int(text), f"the cgroup's memory limit ({group / name})"))
        group = group.parent
    return min(limits)


def memory_available_bytes(proc: Path = _PROC) -> int:
    """Memory that can be had now without swapping."""
    return _meminfo(proc)["MemAvailable"]


def free_bytes(directory: Path) -> int:
    """Space an ordinary process can still use on the mount of `directory`."""
    mount = os.statvfs(directory)
    return mount.f_bavail * mount.f_frsize


def filesystem(path: Path, proc: Path = _PROC) -> str:
    """Type of the mount that `path` lies on, such as tmpfs; empty when it cannot be told."""
    try:
        lines = (proc / "self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        inside = point == "/" or path == Path(point) or Path(point) in path.parents
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def _meminfo(proc: Path) -> dict[str, int]:
    pairs = (line.split(":") for line in (proc / "meminfo").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def _group_dir(proc: Path, cgroup: Path) -> Path | None:
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if hierarchy == "0":
            return cgroup / name.lstrip("/")
        if "memory" in controllers.split(","):
            return cgroup / "memory" / name.lstrip("/")
    return None
