"""Time as a value that is passed in, so that tests own it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never go back; the zero point means nothing."""

    def now_s(self) -> float:
        """Seconds since some fixed moment."""
        ...


class MonotonicClock:
    """The host's monotonic clock."""

    def now_s(self) -> float:
        """Seconds since boot."""
        return time.monotonic()


class ManualClock:
    """Stands still until it is told to move."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """Seconds since the start of the test."""
        return self._now_s

    def advance(self, delta_s: float) -> None:
        """Move forward; a clock does not go back."""
        if delta_s < 0:
            raise ValueError(f"delta_s is {delta_s}; a clock only moves forward")
        self._now_s += delta_s
