"""`kvtier bench` end to end, at sizes that show that every benchmark runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvtier.bench.registry import BENCHES

COMMAND = [sys.executable, "-c", "from kvtier.cli.main import main; main()", "bench"]
FIELDS = ["case", "value", "unit", "reference", "reference_value", "ratio", "budget", "ok"]
ENGINES = {"engine-step": "vllm", "sglang": "SGLang"}  # these run with the tests of the real engines
HERE = [name for name in BENCHES if name not in ENGINES]


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=240)


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_every_benchmark_runs(name: str) -> None:
    shm_before = set(Path("/dev/shm").glob("kvt-bench-*"))
    done = bench(name, "--json", "--quick")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert list(record) == ["name", "machine", "results"]
    assert record["name"] == name
    assert record["machine"]["cores"] >= 1
    assert record["results"]
    for result in record["results"]:
        assert list(result) == FIELDS
        assert result["value"] >= 0
        assert result["reference_value"] > 0  # every reference was measured
    assert set(Path("/dev/shm").glob("kvt-bench-*")) <= shm_before


def test_list_explains_each() -> None:
    done = bench("list")
    assert done.returncode == 0
    for name in BENCHES:
        assert name in done.stdout
    explained = json.loads(bench("list", "--json").stdout)
    assert set(explained) == set(BENCHES)
    assert all("Reference" in text for text in explained.values())


def test_the_table_is_readable() -> None:
    done = bench("idle-cpu", "--quick")
    assert done.returncode == 0, done.stderr
    assert "a spinning thread" in done.stdout
    assert "<= 5 ms/s" in done.stdout


def test_an_unknown_name_is_a_usage_error() -> None:
    done = bench("lookups")
    assert done.returncode == 2
    assert "lookups" in done.stderr


def test_options_of_another_benchmark_are_a_usage_error() -> None:
    done = bench("lookup", "--seconds", "1")
    assert done.returncode == 2
    assert "bench lookup does not take --seconds" in done.stderr


@pytest.mark.parametrize(("name", "engine"), ENGINES.items())
def test_without_an_engine_it_says_what_is_missing(name: str, engine: str) -> None:
    code = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'vllm' else find(name, *a)\n"
        "sys.modules['sglang'] = None\n"
        "from kvtier.cli.main import main\n"
        f"sys.argv = ['kvtier', 'bench', '{name}']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"needs {engine}" in done.stderr
