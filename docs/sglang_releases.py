"""Writes the table of SGLang releases in SGLANG.md: for each release and adapter, which parts of SGLang fit.

    python docs/sglang_releases.py [VERSION ...]

An adapter is a package `connectors/sglang_*` with a `compat.py`, which lists the signatures that it relies
on. Releases are wheels, downloaded without what they depend on into .cache/wheels, and read as source:
nothing of them is imported or installed.
"""

import ast
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources.abc import Traversable
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "SGLANG.md"
WHEELS = ROOT / ".cache" / "wheels"
# From the oldest one whose HiCache takes a storage backend of another package to the newest one known.
RELEASES = (
    *("0.5.9", "0.5.11", "0.5.13.post1", "0.5.15.post1", "0.5.17", "0.5.18", "0.5.19"),
    *("0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
BEGIN, END = "<!-- begin releases, of signatures {} -->", "<!-- end releases -->"
IMPORTS_MAX = 8  # steps from where a name is asked for to where it is defined

Adapters = Mapping[str, ModuleType]
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass(frozen=True)
class Source:
    """Python files as they are imported from a folder, or from a wheel."""

    root: Traversable
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)

    def parameters(self, where: str) -> list[Parameter] | None:
        """Those of `module:function` or `module:Class.method`, self included; None where it is missing."""
        module, _, path = where.partition(":")
        names = path.split(".")
        found = self._find(module, names[0])
        if found is None:
            return None
        module, definition = found
        if len(names) == 1:
            return _parameters(definition) if isinstance(definition, Function) else None
        return self._method(module, definition, names[1])

    def _method(self, module: str, owner: Definition, name: str) -> list[Parameter] | None:
        if not isinstance(owner, ast.ClassDef):
            return None
        for statement in owner.body:
            if isinstance(statement, Function) and statement.name == name:
                return _parameters(statement)
        if name == "__init__" and _is_dataclass(owner):
            return [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *_fields(owner)]
        bases = [base.id for base in owner.bases if isinstance(base, ast.Name)]
        inherited = [self._method(*found, name) for base in bases if (found := self._find(module, base))]
        return next((parameters for parameters in inherited if parameters is not None), None)

    def _find(self, module: str, name: str, steps: int = IMPORTS_MAX) -> tuple[str, Definition] | None:
        """Where a name of a module is defined, through what it imports."""
        tree = self._tree(module)
        if tree is None or not steps:
            return None
        for statement in _statements(tree.body):
            if isinstance(statement, Definition) and statement.name == name:
                return module, statement
            if isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        return self._find(statement.module, alias.name, steps - 1)
        return None

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            path = module.replace(".", "/")
            files = [self.root.joinpath(name) for name in (f"{path}.py", f"{path}/__init__.py")]
            texts = [file.read_bytes() for file in files if file.is_file()]
            self._trees[module] = ast.parse(texts[0]) if texts else None
        return self._trees[module]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Of a module, those in its branches too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _statements([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handlers = [inner for handler in statement.handlers for inner in handler.body]
            yield from _statements([*statement.body, *handlers, *statement.orelse])


def _parameters(function: Function) -> list[Parameter]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    kinds = [Parameter.POSITIONAL_ONLY] * len(arguments.posonlyargs)
    kinds += [Parameter.POSITIONAL_OR_KEYWORD] * len(arguments.args)
    required = len(positional) - len(arguments.defaults)
    found = [
        _parameter(argument.arg, kind, default=position >= required)
        for position, (argument, kind) in enumerate(zip(positional, kinds, strict=True))
    ]
    if arguments.vararg:
        found.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    found += [
        _parameter(argument.arg, Parameter.KEYWORD_ONLY, default=default is not None)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        found.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return found


def _is_dataclass(owner: ast.ClassDef) -> bool:
    names = [node.func if isinstance(node, ast.Call) else node for node in owner.decorator_list]
    return any(isinstance(name, ast.Name) and name.id == "dataclass" for name in names)


def _fields(owner: ast.ClassDef) -> list[Parameter]:
    return [
        _parameter(statement.target.id, Parameter.POSITIONAL_OR_KEYWORD, default=statement.value is not None)
        for statement in owner.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]


def _parameter(name: str, kind: Any, *, default: bool) -> Parameter:
    return Parameter(name, kind, default=None if default else Parameter.empty)


# ---- the table ----


def adapters() -> Adapters:
    """Package name -> its compat module."""
    found = sorted(path.parent.name for path in (ROOT / "connectors").glob("sglang_*/compat.py"))
    return {name: import_module(f"kvtier_connectors.{name}.compat") for name in found}


def digest(known: Adapters) -> str:
    """Of all that the table is made from beside the wheels: a change of it makes the table stale."""
    parts = {
        name: (compat.SIGNATURES, compat.VERSION_FIRST, compat.VERSION_LAST) for name, compat in known.items()
    }
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:12]


def table(sources: Mapping[str, Source], known: Adapters) -> list[str]:
    """Lines of Markdown: a row for each release, and what differs in those that do not fit."""
    from kvtier_connectors.common.signatures import in_range, misfits

    rows = [["SGLang", *(f"`{name}`" for name in known)], ["---"] * (len(known) + 1)]
    notes: dict[tuple[str, str], list[str]] = {}  # adapter and what differs -> releases
    for version, source in sources.items():
        cells = [version]
        for name, compat in known.items():
            problems = misfits(compat.SIGNATURES, source.parameters)
            listed = in_range(version, compat.VERSION_FIRST, compat.VERSION_LAST)
            parts = f"{len(problems)} of {len(compat.SIGNATURES)} parts differ" if problems else "parts fit"
            cells.append(f"**served**, {parts}" if listed and not problems else f"refused; {parts}")
            for problem in problems:
                notes.setdefault((name, problem), []).append(version)
        rows.append(cells)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    together: dict[tuple[str, str], list[str]] = {}  # adapter and releases -> what differs in all of these
    for (name, problem), versions in notes.items():
        together.setdefault((name, ", ".join(versions)), []).append(problem)
    lines += ["", "What differs:", ""] if notes else []
    return lines + [
        f"- `{name}`, {versions}: {'; '.join(f'`{problem}`' for problem in problems)}"
        for (name, versions), problems in together.items()
    ]


def write(page: Path, lines: Sequence[str], known: Adapters) -> None:
    """Replace what stands between the marks. ValueError when they are not there."""
    before, begin, rest = page.read_text().partition(BEGIN.partition("{")[0])
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no lines '{BEGIN}' and '{END}'")
    page.write_text("\n".join((before + BEGIN.format(digest(known)), "", *lines, "", end + after)))


def download(version: str) -> Path:
    """The wheel of a release."""
    found = list(WHEELS.glob(f"sglang-{version}-*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        # The Python that the engine's tests run under: the wheel of another version holds the same source.
        subprocess.run(
            [*command, "--python-version", "3.11", "-d", str(WHEELS), f"sglang=={version}"], check=True
        )
        found = list(WHEELS.glob(f"sglang-{version}-*.whl"))
    return found[0]


def main(versions: Sequence[str]) -> None:
    """Bring the page up to date."""
    known = adapters()
    sources = {version: Source(zipfile.Path(download(version))) for version in versions or RELEASES}
    write(PAGE, table(sources, known), known)


if __name__ == "__main__":
    main(sys.argv[1:])
