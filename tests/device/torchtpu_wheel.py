"""What a release of vllm_torchtpu_core asks of a KV connector, read from its wheel without importing it.

python tests/device/torchtpu_wheel.py WHEEL      prints what belongs into kvtier_connectors' interface.py
"""

import ast
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CALLERS = ("runner/tpu_runner.py", "runner/kv_cache_manager.py", "worker/tpu_worker.py")
PLATFORM, CONNECTOR = "platforms/tpu_platform.py", "offload/raiden_connector.py"
CLASS = "TPURaidenOffloadingConnector"


class Call(NamedTuple):
    """One way in which a hook is called."""

    hook: str
    positional: int
    keywords: tuple[str, ...]


class Interface(NamedTuple):
    version: str
    names: frozenset[str]  # class names of connectors that pass
    calls: frozenset[Call]
    hooks: frozenset[tuple[str, tuple[str, ...]]]  # what their own connector defines, with its parameters


def interface_of(wheel: Path) -> Interface:
    with zipfile.ZipFile(wheel) as archive:

        def tree(name: str) -> ast.Module:
            return ast.parse(archive.read(f"vllm_torchtpu/{name}"))

        calls = {call for name in CALLERS for call in _calls(tree(name))}
        return Interface(
            version=wheel.name.split("-")[1],
            names=frozenset(_names(tree(PLATFORM))),
            calls=frozenset(calls),
            hooks=frozenset(_hooks(tree(CONNECTOR))),
        )


def _is_connector(node: ast.expr) -> bool:
    """`kv_connector`, `connector`, or a call of vLLM's getter."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "get_kv_transfer_group"
    return isinstance(node, ast.Name) and node.id in ("kv_connector", "connector")


def _calls(tree: ast.Module) -> Iterator[Call]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _is_connector(node.func.value)
        ):
            keywords = tuple(sorted(keyword.arg or "**" for keyword in node.keywords))
            yield Call(node.func.attr, len(node.args), keywords)


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "_TPU_SUPPORTED_KV_CONNECTORS"
            for target in node.targets
        ):
            yield from (element.value for element in node.value.elts)  # type: ignore[attr-defined]


def _hooks(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == CLASS:
            for method in (m for m in node.body if isinstance(m, ast.FunctionDef)):
                yield method.name, tuple(argument.arg for argument in method.args.args[1:])


if __name__ == "__main__":
    found = interface_of(Path(sys.argv[1]))
    print("version", found.version)
    for name in sorted(found.names):
        print("name", name)
    for call in sorted(found.calls):
        print("call", call)
    for hook in sorted(found.hooks):
        print("hook", hook)
