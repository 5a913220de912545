"""Which SGLang is served: the refusal of others, and the table of releases that is made from their source."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kvtier_connectors.common.signatures import installed, misfits
from kvtier_connectors.sglang_hicache import compat

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import sglang_releases  # noqa: E402

OLD = {"sglang/__init__.py": "", "sglang/version.py": "__version__ = '{}'"}
STORAGE = "sglang/srt/mem_cache/hicache_storage.py"


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.5.9", ["outside", "HiCacheStorage.batch_set_v2 is missing"]),
        ("0.6.0", ["outside"]),
        ("0.5.23", ["HiCacheStorage.batch_set_v2 is missing"]),
        ("dev", ["outside"]),
    ],
)
def test_a_release_that_does_not_fit_is_refused_whatever_it_lacks(
    tmp_path: Path, version: str, words: list[str]
) -> None:
    plant(tmp_path, {name: text.format(version) for name, text in OLD.items()})
    plant(tmp_path, {STORAGE: "class HiCacheStorage:\n    def exists(self, key): ...\n"})
    code = "import kvtier_connectors.sglang_hicache as package; package.KvtierHiCache"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"ImportError: kvtier's HiCache backend does not fit SGLang {version}: ")
    assert all(word in message for word in words), message


def test_the_table_of_the_page_is_of_the_signatures_that_are_checked() -> None:
    known = sglang_releases.adapters()
    assert "sglang_hicache" in known
    text = (DOCS / "SGLANG.md").read_text()
    assert sglang_releases.BEGIN.format(sglang_releases.digest(known)) in text, "run docs/sglang_releases.py"
    served = re.findall(r"^\| (\S+) \| \*\*served", text, re.MULTILINE)
    assert served[-1] == ".".join(map(str, compat.VERSION_LAST))
    assert served[0] == ".".join(map(str, compat.VERSION_FIRST))


PACKAGE = {
    "planted_engine/__init__.py": "from planted_engine.inner import Base as Foundation, launch\n",
    "planted_engine/inner.py": """
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    def never(x): ...
else:
    def branched(x, *more, key, other=1, **rest): ...

class Base:
    def kept(self, keys, extra=None): ...
    async def asked(self, a, /, b): ...

class Storage(Base):
    @classmethod
    def of(cls, config): ...

@dataclass
class Result:
    pages: int
    restorable: list = field(default_factory=list)
    more: int = 0

@dataclass(frozen=True)
class Bare: ...

def launch(): ...
""",
}
INNER = "planted_engine.inner:"


@pytest.mark.parametrize(
    "where",
    [
        f"{INNER}Base.kept",
        f"{INNER}Base.asked",
        f"{INNER}Storage.kept",
        f"{INNER}Storage.gone",
        f"{INNER}Result.__init__",
        f"{INNER}Bare.__init__",
        f"{INNER}branched",
        "planted_engine:Foundation.kept",
        "planted_engine:launch",
        "planted_engine:gone",
        "planted_engine.gone:launch",
    ],
)
def test_source_says_what_the_imported_module_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    plant(tmp_path, PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("planted_engine")]:
        monkeypatch.delitem(sys.modules, name)

    def plain(parameters):
        if parameters is None:
            return None
        return [(p.name, p.kind, p.default is p.empty) for p in parameters if p.name != "self"]

    assert plain(sglang_releases.Source(tmp_path).parameters(where)) == plain(installed(where))


def test_a_page_gets_its_table(tmp_path: Path) -> None:
    plant(tmp_path, PACKAGE)
    sources = {version: sglang_releases.Source(tmp_path) for version in ("1.2.3", "1.2.4")}

    def compat_of(*methods: str) -> SimpleNamespace:
        wanted = {f"{INNER}{method}": ("keys", "extra") for method in methods}
        return SimpleNamespace(SIGNATURES=wanted, VERSION_FIRST=(1, 2, 3), VERSION_LAST=(1, 2, 3))

    lines = sglang_releases.table(sources, {"planted": compat_of("Base.kept", "Storage.gone")})
    assert lines[2] == "| 1.2.3 | refused; 1 of 2 parts differ |"
    assert lines[3] == "| 1.2.4 | refused; 1 of 2 parts differ |"
    assert lines[-1] == "- `planted`, 1.2.3, 1.2.4: `Storage.gone is missing`"
    known = {"planted": compat_of("Base.kept")}
    lines = sglang_releases.table(sources, known)
    assert lines[2:] == ["| 1.2.3 | **served**, parts fit |", "| 1.2.4 | refused; parts fit |"]

    page = tmp_path / "page.md"
    page.write_text(f"above\n{sglang_releases.BEGIN.format('old')}\nold\n{sglang_releases.END}\nbelow\n")
    for _ in range(2):
        sglang_releases.write(page, lines, known)
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    assert text.count(lines[-1]) == 1
    assert "old" not in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="has no lines"):
        sglang_releases.write(page, lines, known)


def test_misfits_of_source_read_as_those_of_the_installed(tmp_path: Path) -> None:
    plant(tmp_path, PACKAGE)
    wanted = {f"{INNER}Base.kept": ("key",)}
    (problem,) = misfits(wanted, sglang_releases.Source(tmp_path).parameters)
    assert problem == "Base.kept takes (keys, extra), not (key)"
