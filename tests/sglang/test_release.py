"""Which SGLang is served, asked through SGLang's own loading of backends."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import Daemon
from inprocess import Case, Stack
from kvtier_connectors.common.signatures import installed, misfits
from kvtier_connectors.sglang_hicache import compat

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import sglang_releases


def test_the_installed_release_fits() -> None:
    assert misfits(compat.SIGNATURES) == []


@pytest.mark.parametrize("where", compat.SIGNATURES)
def test_its_source_says_what_is_imported(where: str) -> None:
    packages = Path(find_spec("sglang").origin).parents[1]
    read, imported = sglang_releases.Source(packages).parameters(where), installed(where)
    assert [(p.name, p.kind, p.default is p.empty) for p in read] == [
        (p.name, p.kind, p.default is p.empty) for p in imported
    ]


def test_an_unknown_release_is_refused_at_attach(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang.version.__version__", "0.6.0")
    with pytest.raises(ImportError, match=r"does not fit SGLang 0\.6\.0: its version is outside 0\.5"):
        Stack(Case(), daemon.address)
    monkeypatch.undo()
    with Stack(Case(), daemon.address) as stack:
        assert stack.backend is not None
