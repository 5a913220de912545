"""Whether the parts of an engine that an adapter relies on are those of the installed release.

They are no published interfaces. Each is listed by its adapter with the parameters that it relies on; an
engine that differs is refused with one message instead of failing in the middle.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence

# `module:Class.method` -> its parameters; None where it is missing.
Look = Callable[[str], Sequence[inspect.Parameter] | None]


def problems_with(
    version: str, signatures: Mapping[str, Sequence[str]], first: tuple[int, ...], last: tuple[int, ...]
) -> list[str]:
    """All that does not fit, in words: the version's range first, then each part. Empty: it fits."""
    problems = misfits(signatures)
    if not in_range(version, first, last):
        low, high = (".".join(map(str, v)) for v in (first, last))
        problems.insert(0, f"its version is outside {low} to {high}")
    return problems


def in_range(version: str, first: tuple[int, ...], last: tuple[int, ...]) -> bool:
    """Whether a version string lies in the range, in as many parts as it has; false if unreadable."""
    try:
        release = tuple(int(part) for part in version.split("+")[0].split(".")[: len(first)])
    except ValueError:
        return False
    return first <= release <= last


def installed(where: str) -> Sequence[inspect.Parameter] | None:
    """Of what is installed."""
    module, _, path = where.partition(":")
    try:
        target: object = importlib.import_module(module)
        for name in path.split("."):
            target = getattr(target, name)
    except (ImportError, AttributeError):
        return None
    return list(inspect.signature(target).parameters.values())  # type: ignore[arg-type]


def misfits(signatures: Mapping[str, Sequence[str]], look: Look = installed) -> list[str]:
    """What is missing or has other parameters, in words.

    signatures: module:Class.method -> its parameters without self, in order; others with a default are fine.
    """
    problems = []
    for where, wanted in signatures.items():
        path = where.partition(":")[2]
        parameters = look(where)
        problem = "is missing" if parameters is None else _difference(parameters, wanted)
        if problem:
            problems.append(f"{path} {problem}")
    return problems


def _difference(parameters: Sequence[inspect.Parameter], wanted: Sequence[str]) -> str | None:
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    have, rest = [p.name for p in named[: len(wanted)]], named[len(wanted) :]
    if have != list(wanted):
        return f"takes ({', '.join(p.name for p in named)}), not ({', '.join(wanted)})"
    if required := [p.name for p in rest if p.default is p.empty]:
        return f"requires also ({', '.join(required)})"
    return None
