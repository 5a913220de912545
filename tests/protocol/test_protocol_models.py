"""The models of docs/SHARED_MEMORY.md: each holds as it is, and none holds with a rule taken out."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")
NEEDED = {"spin": shutil.which("spin"), "a C compiler": COMPILER}
MISSING = [name for name, path in NEEDED.items() if path is None]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"no {' and no '.join(MISSING)}: sh requirements/install-spin.sh"
)


def broken_rules(model: Path) -> list[str]:
    named = re.search(r"^// broken: (.+)$", model.read_text(), re.MULTILINE)
    assert named, f"{model.name} names no rule that can be taken out"
    return named.group(1).split()


def errors_of(model: Path, folder: Path, *rules: str) -> int:
    """How many errors a whole search finds; it stops at the first."""

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    run("spin", "-a", *(f"-D{rule}" for rule in rules), str(model))
    run(str(COMPILER), "-O1", "-w", "-DSAFETY", "-DMEMLIM=2048", "-o", "pan", "pan.c")
    said = run("./pan", "-m200000")
    found = re.search(r"errors: (\d+)", said)
    assert found, said
    errors = int(found.group(1))
    if errors == 0:
        assert "max search depth too small" not in said, said
        assert "Search not completed" not in said, said
    return errors


MODELS = sorted(HERE.glob("*.pml"))
MUTATIONS = [(model, rule) for model in MODELS for rule in broken_rules(model)]


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_the_protocol_holds(model: Path, tmp_path: Path) -> None:
    assert errors_of(model, tmp_path) == 0


@pytest.mark.parametrize(("model", "rule"), MUTATIONS, ids=[f"{m.stem}-{r}" for m, r in MUTATIONS])
def test_without_a_rule_it_does_not(model: Path, rule: str, tmp_path: Path) -> None:
    assert rule in model.read_text().split("// broken:")[1].split("\n", 1)[1], "a rule that nothing reads"
    assert errors_of(model, tmp_path, rule) == 1
