"""C++ includes point down: a folder may include itself and the folders listed for it."""

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "tpu_sync_native"

BELOW = {
    "base": set(),
    "arena": {"base"},
    "catalog": {"base"},
    "index": {"base"},
    "slots": {"base", "arena", "index"},
    "policy": {"base", "slots"},
    "store": {"base", "arena", "index", "slots", "policy"},
    "ring": {"base", "store"},
    "client": {"base", "index", "catalog", "store", "ring"},
    "copy": {"base"},
    "pjrt": {"base", "copy"},
    "cuda": {"base", "copy"},
    "torch_tpu": {"base", "pjrt"},
    "fs": {"base"},
    "segment": {"base", "fs"},
    "storage": {"base", "arena", "index", "slots", "policy", "store", "catalog", "segment", "fs"},
}
BINDINGS = set(BELOW) | {"bindings"}


def upward(root: Path) -> list[str]:
    """Includes that no layer allows. The public headers (tpu_sync_native/...) are everyone's."""
    found = []
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".h", ".cc") and "tests" not in p.parts):
        part = path.relative_to(root).parts
        if part[0] == "src" and part[1] not in BELOW:
            found.append(f"{path.name}: folder src/{part[1]} is in no layer")
            continue
        allowed = (
            BELOW[part[1]] | {part[1]} if part[0] == "src" else BINDINGS if part[0] == "bindings" else set()
        )
        for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            folder = target.split("/")[0] if "/" in target else part[0]
            if folder != "tpu_sync_native" and folder not in allowed:
                found.append(f"{'/'.join(part)} includes {target}")
    return found


def test_includes_point_down() -> None:
    assert upward(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("src/base/planted.h", '#include "store/store.h"'),
        ("src/policy/planted.cc", '#include "store/store.h"'),
        ("src/store/planted.cc", '#  include "ring/ring_server.h"'),
        ("src/copy/planted.cc", '#include "ring/futex.h"'),
        ("include/tpu_sync_native/planted.h", '#include "base/align.h"'),
        ("src/surprise/planted.cc", ""),
    ],
)
def test_a_planted_include_is_caught(tmp_path: Path, file: str, line: str) -> None:
    tree = tmp_path / "tpu_sync_native"
    shutil.copytree(ROOT, tree)
    (tree / file).parent.mkdir(parents=True, exist_ok=True)
    (tree / file).write_text(f"{line}\n")
    assert len(upward(tree)) == 1
