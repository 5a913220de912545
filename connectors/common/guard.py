"""No fault of ours reaches the engine: a hook that fails answers as an empty cache would.

Engines have little or no isolation around such hooks: in vLLM one exception ends the engine core. Each
distinct fault is logged once with its traceback and counted always.
"""

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

faults: Counter[str] = Counter()  # hook name -> faults swallowed in this process


def record_fault(where: str, error: BaseException) -> None:
    """Count a swallowed fault; log the first of its kind with its traceback."""
    kind = f"{where}: {type(error).__name__}"
    first = faults[kind] == 0
    faults[kind] += 1
    if first:
        logger.error(
            "kvtier: %s failed; the engine goes on without this answer (logged once)", where, exc_info=error
        )


def fault_count() -> int:
    """Faults swallowed in this process so far."""
    return sum(faults.values())


def guarded(fallback: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A method that, when it raises, returns `fallback(*args)` (given the method's own arguments) instead."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                record_fault(method.__qualname__, error)
                return fallback(*args, **kwargs)  # type: ignore[no-any-return]

        return call

    return decorate


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """The fallback of hooks without an answer."""
