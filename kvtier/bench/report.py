"""What a benchmark returns, and how it is written down."""

import operator
from dataclasses import dataclass
from typing import Any, Final, Literal

_COMPARE: Final = {"<=": operator.le, ">=": operator.ge}


class BenchSkipped(Exception):
    """This machine or environment cannot run the benchmark; the message says what is missing."""


@dataclass(frozen=True)
class Budget:
    """A promise: the value, or its ratio to the reference, stays on one side of a limit."""

    limit: float
    of: Literal["value", "ratio"] = "value"
    side: Literal["<=", ">="] = "<="

    def holds(self, result: "Result") -> bool:
        """Whether this result keeps it; a ratio that could not be taken does not."""
        measured = result.value if self.of == "value" else result.ratio
        return measured is not None and bool(_COMPARE[self.side](measured, self.limit))

    def show(self, unit: str) -> str:
        """As people read it: `<= 30 us`, `>= 0.95 x`."""
        return f"{self.side} {self.limit:g} {'x' if self.of == 'ratio' else unit}"


@dataclass(frozen=True)
class Result:
    """One number beside its reference. `ratio` is value / reference_value."""

    case: str
    value: float
    unit: str
    reference: str
    reference_value: float | None
    budget: Budget | None = None

    @property
    def ratio(self) -> float | None:
        """None when there is no reference value to divide by."""
        return self.value / self.reference_value if self.reference_value else None

    @property
    def ok(self) -> bool | None:
        """Whether the budget holds; None without a budget."""
        return None if self.budget is None else self.budget.holds(self)

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "case": self.case,
            "value": self.value,
            "unit": self.unit,
            "reference": self.reference,
            "reference_value": self.reference_value,
            "ratio": self.ratio,
            "budget": None if self.budget is None else self.budget.show(self.unit),
            "ok": self.ok,
        }


@dataclass(frozen=True)
class Report:
    """One benchmark's run."""

    name: str
    machine: dict[str, Any]
    results: tuple[Result, ...]

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.name,
            "machine": self.machine,
            "results": [result.record() for result in self.results],
        }
