"""Lustre manners: how the files of a storage root are striped.

The default of `<root>/v1` is inherited by everything made below it: the first 256 MiB of a file lie on one
storage target, so leases, indexes and small segments cost one object; what lies behind is spread over four,
so the chunks of a hot prefix in a large segment are not read from one target alone. Set once, best effort:
without it everything works, and an operator may set another layout (deploy/lustre.md).
"""

import os
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvtier.io import machine

LAYOUT: Final = ("-E", "256M", "-c", "1", "-S", "4M", "-E", "-1", "-c", "4", "-S", "4M")
LFS_TIMEOUT_S: Final = 10.0


def stripe(root: Path) -> str:
    """Set the default layout of a root on Lustre; what became of it in words, empty where it is not Lustre.

    Blocks for LFS_TIMEOUT_S at most by itself, and as long as the mount does. Never raises.
    """
    if machine.filesystem(root.absolute()) != "lustre":
        return ""
    lfs = shutil.which("lfs")
    if lfs is None:
        return (
            "the storage root is on Lustre, but lfs is not installed here: its files are striped by default"
        )
    directory = root / "v1"
    try:
        made = _make(directory)
        if not made and _run(lfs, "getstripe", "-d", "-c", str(directory)).strip() not in ("", "0", "1"):
            return f"{directory} has a layout of its own, which stays"
        _run(lfs, "setstripe", *LAYOUT, str(directory))
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        return f"{directory} could not be striped, its files are striped by default: {str(detail).strip()}"
    return f"{directory} is striped: {' '.join(LAYOUT)}"


def _make(directory: Path) -> bool:
    """True when it is new; then with its root's rights for the group, where that may write."""
    mode = stat.S_IMODE(directory.parent.stat().st_mode)
    shared = bool(mode & stat.S_IWGRP)
    with suppress(FileExistsError):
        directory.mkdir(0o700)
        if shared:
            directory.chmod(0o770 | (mode & stat.S_ISGID))
        return True
    if directory.is_symlink():
        raise NotADirectoryError(f"{os.fspath(directory)} is a symbolic link")
    return False


def _run(lfs: str, *args: str) -> str:
    done = subprocess.run(
        [lfs, *args],
        capture_output=True,
        text=True,
        timeout=LFS_TIMEOUT_S,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout
