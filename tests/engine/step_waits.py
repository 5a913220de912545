"""How long the steps of an engine spend in kvtier's hooks, less what their thread waits for a core."""

import inspect
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SCHEDSTAT = Path("/proc/thread-self/schedstat")


class StepWaits:
    """Stands around every hook of the connectors and around the engine's step."""

    def __init__(self, engine: Any, connectors: Iterable[Any]) -> None:
        self.longest_ms = 0.0
        self._in_step_ns = 0
        self._inside = False
        for connector in connectors:
            for name, _ in inspect.getmembers(type(connector), inspect.isfunction):
                if not name.startswith("_"):
                    setattr(connector, name, self._timed(getattr(connector, name)))
        self._step = engine.step
        engine.step = self._one_step

    def take(self) -> float:
        """The most of a step since the last call, in ms."""
        longest_ms, self.longest_ms = self.longest_ms, 0.0
        return longest_ms

    def _one_step(self) -> Any:
        self._in_step_ns = 0
        try:
            return self._step()
        finally:
            self.longest_ms = max(self.longest_ms, self._in_step_ns / 1e6)

    def _timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._inside:  # a hook that calls another one
                return hook(*arguments, **named)
            self._inside, began_ns = True, _own_ns()
            try:
                return hook(*arguments, **named)
            finally:
                self._in_step_ns += _own_ns() - began_ns
                self._inside = False

        return call


def _own_ns() -> int:
    return time.monotonic_ns() - int(SCHEDSTAT.read_text().split()[1])
