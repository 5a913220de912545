"""The stub says what the module has, no more and no less."""

import ast
import inspect
from pathlib import Path

from tpu_sync_native import _core

FOLDER = Path(__file__).parents[2] / "tpu_sync_native/python"
STUB = [
    node for name in ("_core.pyi", "_devices.pyi") for node in ast.parse((FOLDER / name).read_text()).body
]
ALIASES = {"Bytes", "Keys", "Keep", "U8", "U32", "U64"}


def names_in(body: list[ast.stmt]) -> set[str]:
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def public(names: object) -> set[str]:
    return {name for name in vars(names) if not name.startswith("_")}


def test_module_names() -> None:
    assert names_in(STUB) - ALIASES == public(_core)


def test_members() -> None:
    for node in STUB:
        if isinstance(node, ast.ClassDef) and node.name != "DaemonLost":
            stubbed = {name for name in names_in(node.body) if not name.startswith("_")}
            assert stubbed == public(getattr(_core, node.name)), node.name


def test_argument_names() -> None:
    """pybind11 writes each signature into the docstring: the stub's argument names must be there in order."""
    for node in STUB:
        if not isinstance(node, ast.ClassDef) or node.name == "DaemonLost":
            continue
        for method in (m for m in node.body if isinstance(m, ast.FunctionDef) and m.name != "__len__"):
            arguments = [a.arg for a in (*method.args.args[1:], *method.args.kwonlyargs)]
            doc = inspect.getdoc(getattr(getattr(_core, node.name), method.name)) or ""
            places = [doc.find(f"{argument}: ") for argument in arguments]
            assert -1 not in places, (node.name, method.name, arguments, doc)
            assert places == sorted(places), (node.name, method.name, arguments, doc)
