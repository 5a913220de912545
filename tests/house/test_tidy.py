"""Small files, plain words, nothing left undone. Runs over what is committed or about to be."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES_MAX = 400
TEXT = {
    ".py",
    ".pyi",
    ".cc",
    ".h",
    ".md",
    ".toml",
    ".proto",
    ".sh",
    ".txt",
    ".yaml",
    ".yml",
    ".ini",
    ".cmake",
}
SIZED = {".py", ".pyi", ".cc", ".h", ".sh"}

# Left undone, and paths that exist on one machine only.
LEFT_UNDONE = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError\b")
MACHINE_PATHS = re.compile(r"(?<![\w.~])/(work|root|home/\w+)/")
SILENT = re.compile(r"except[^\n:]*:\s*\n\s*pass\s*(#[^\n]*)?\n")
OFFLOAD = re.compile(r"^\s*(async )?def \w*offload\w*\(", re.MULTILINE | re.IGNORECASE)


def files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    paths = [ROOT / name for name in listed]
    # This file spells the very words it looks for.
    wanted = [path for path in paths if path.suffix in TEXT and path != Path(__file__)]
    return [path for path in wanted if path.is_file() and not path.is_symlink()]


def faults(name: str, text: str) -> list[str]:
    """What is wrong with one file."""
    suffix = Path(name).suffix
    found = []
    if suffix in SIZED and text.count("\n") > LINES_MAX:
        found.append(f"{name}: {text.count(chr(10))} lines, at most {LINES_MAX}")
    for pattern, what in ((LEFT_UNDONE, "left undone"), (MACHINE_PATHS, "a path of one machine")):
        found += [f"{name}: {what}: {match.group(0)}" for match in pattern.finditer(text)]
    if suffix == ".py":
        for match in SILENT.finditer(text):
            if not match.group(1):
                found.append(f"{name}: a silent except without a reason")
        if name.startswith("kvtier/") and OFFLOAD.search(text):
            found.append(f"{name}: a function called offload")
    if suffix in {".py", ".cc", ".h"} and "\t" in text:
        found.append(f"{name}: a tab")
    return found


def test_every_file_is_tidy() -> None:
    found = [
        fault for path in files() for fault in faults(path.relative_to(ROOT).as_posix(), path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kvtier/a.py", "x = 1\n" * (LINES_MAX + 1)),
        ("kvtier/a.py", "# TODO later\n"),
        ("kvtier/a.py", "raise NotImplementedError\n"),
        ("docs/a.md", "see /work/main\n"),
        ("kvtier/a.py", "try:\n    f()\nexcept OSError:\n    pass\n"),
        ("kvtier/a.py", "def offload_blocks():\n    return 1\n"),
        ("tpu_sync_native/src/a.cc", "\tint x;\n"),
    ],
)
def test_a_planted_fault_is_caught(name: str, text: str) -> None:
    assert len(faults(name, text)) == 1


def test_git_knows_files() -> None:
    assert len(files()) > 50  # an empty listing would make the test above say nothing


def test_test_files_have_names_of_their_own():
    """pytest imports them by bare name: two of one name cannot be collected together."""
    names = [path.name for path in files() if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
