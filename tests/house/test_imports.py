"""Imports point down, and the doors to grpc and the native module stay where they are.

Each rule must catch a planted violation.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = Path(__file__).with_name("importlinter.ini")

# The standard finders only: an editable install would lead the linter away from `sys.argv[1]`.
LINT = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from importlinter.cli import lint_imports
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
sys.path.insert(0, sys.argv[1])
sys.exit(lint_imports(config_filename=sys.argv[2], no_cache=True))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the Python code under its import names, to plant in."""
    ignored = shutil.ignore_patterns("__pycache__", "traces", "_gen")
    shutil.copytree(ROOT / "kvtier", tmp_path / "kvtier", ignore=ignored)
    connectors = tmp_path / "kvtier_connectors"
    if (ROOT / "connectors").exists():
        shutil.copytree(ROOT / "connectors", connectors, ignore=ignored)
    connectors.mkdir(exist_ok=True)
    (connectors / "__init__.py").touch()
    return tmp_path


def lint(tree: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", LINT, str(tree), str(CONTRACTS)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tree)


def test_imports_point_down(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("kvtier/daemon/service.py", "import kvtier.client.session", "Imports point down BROKEN"),
        ("kvtier/io/shm.py", "from kvtier.daemon import service", "Imports point down BROKEN"),
        ("kvtier/brand_new.py", "", "Imports point down BROKEN"),
        ("kvtier_connectors/planted.py", "from kvtier.client import session", "alone BROKEN"),
        ("kvtier_connectors/planted.py", "import tpu_sync_native", "alone BROKEN"),
        ("kvtier/client/planted.py", "import kvtier_connectors", "no engine BROKEN"),
    ],
)
def test_a_planted_import_is_caught(tree: Path, module: str, line: str, contract: str) -> None:
    path = tree / module
    path.write_text((path.read_text() if path.exists() else "") + f"\n{line}\n")
    done = lint(tree)
    assert done.returncode != 0
    text = re.sub(r"\s+", " ", done.stdout)
    assert contract in text or "brand_new" in text, done.stdout + done.stderr


# ---- doors: who may import what, by file ----

DOORS = {
    "grpc": re.compile(r"^kvtier/(daemon/.*|client/channel)\.py$"),
    "tpu_sync_native": re.compile(r"^kvtier/io/native\.py$"),
    "fsspec": re.compile(r"^kvtier/io/objects\.py$"),
    "prometheus_client": re.compile(r"^kvtier/(daemon/.*|metrics)\.py$"),
    "torch": re.compile(r"^((kvtier_)?connectors/|kvtier/demo/|kvtier/bench/).*$"),
    "sglang": re.compile(r"^((kvtier_)?connectors/sglang_\w+/|kvtier/bench/sglang\w*\.py).*$"),
    "vllm": re.compile(r"^((kvtier_)?connectors/vllm_\w+/|kvtier/demo/|kvtier/bench/).*$"),
}


def strangers(root: Path) -> list[str]:
    """Files that import through a door that is not theirs."""
    found = []
    for path in sorted(
        p for folder in ("kvtier", "connectors", "kvtier_connectors") for p in (root / folder).rglob("*.py")
    ):
        name = path.relative_to(root).as_posix()
        if "/_gen/" in name:
            continue
        text = path.read_text()
        for package, allowed in DOORS.items():
            imports = (
                rf"^\s*(import|from)\s+{package}(_health|_reflection)?\b|import_module\(\s*['\"]{package}\b"
            )
            if re.search(imports, text, re.MULTILINE) and not allowed.match(name):
                found.append(f"{name} imports {package}")
    return found


def test_doors_are_kept() -> None:
    assert strangers(ROOT) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("kvtier/client/session.py", "import grpc"),
        ("kvtier/cli/planted.py", "    from grpc import aio"),
        ("kvtier/client/planted.py", "from tpu_sync_native import Session"),
        ("kvtier/daemon/planted.py", "import_module('tpu_sync_native')"),
        ("kvtier/client/planted.py", "import torch"),
    ],
)
def test_a_planted_door_is_caught(tree: Path, module: str, line: str) -> None:
    assert strangers(tree) == []
    path = tree / module
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + f"\n{line}\n")
    assert len(strangers(tree)) == 1


def test_the_public_face_is_cheap() -> None:
    """`import kvtier` loads neither grpc, numpy nor the native module, and every name of it resolves."""
    code = (
        "import sys, kvtier\n"
        "heavy = {'grpc', 'numpy', 'tpu_sync_native', 'pydantic', 'google.protobuf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert all(getattr(kvtier, name) is not None for name in kvtier.__all__)\n"
        "assert set(kvtier.__all__) == set(kvtier._HOME)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
