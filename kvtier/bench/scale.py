"""How large a run is."""

import enum
from typing import TypeVar

T = TypeVar("T")


class Scale(enum.Enum):
    """QUICK shows that it runs (its numbers mean little), budgets are for NORMAL, FULL needs memory."""

    QUICK = "quick"
    NORMAL = "normal"
    FULL = "full"

    def pick(self, quick: T, normal: T, full: T | None = None) -> T:
        """The value for this scale; FULL is NORMAL where it has none of its own."""
        if self is Scale.QUICK:
            return quick
        return normal if self is Scale.NORMAL or full is None else full
