"""A test that asks for a seed and fails says how to run it again; then it draws the same."""

import os
import re
import subprocess
import sys
from pathlib import Path

CASE = """
import random

def test_fails(seed):
    assert False, f"drew {random.Random(seed).random()}"

def test_passes(seed):
    pass
"""


def run(folder: Path, **environment: str) -> str:
    """What pytest says of the case."""
    (folder / "test_case.py").write_text(CASE)
    command = [sys.executable, "-m", "pytest", "-p", "seeds", "-p", "no:cacheprovider", "test_case.py"]
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])}
    inherited = {name: value for name, value in os.environ.items() if name != "KVTIER_SEED"}
    result = subprocess.run(
        command, cwd=folder, env=inherited | paths | environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stdout


def test_a_failure_names_the_seed_that_repeats_it(tmp_path: Path) -> None:
    said = run(tmp_path)
    again = re.findall(r"again: KVTIER_SEED=(\d+) pytest 'test_case.py::(\w+)'", said)
    assert [name for _, name in again] == ["test_fails"]
    drew = re.findall(r"drew [\d.]+", said)
    assert drew
    assert set(re.findall(r"drew [\d.]+", run(tmp_path, KVTIER_SEED=again[0][0]))) == set(drew)
    assert set(re.findall(r"drew [\d.]+", run(tmp_path))) != set(drew)
