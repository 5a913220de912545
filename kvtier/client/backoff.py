"""Growing pauses between attempts to attach."""

import random

FIRST_S = 0.05
LONGEST_S = 5.0


class Backoff:
    """Pauses that double up to five seconds, each between half and the whole of its step.

    The jitter keeps the engines of a host from all asking at the same moment.
    """

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source or random.Random()  # noqa: S311  spreads load, guards nothing
        self._step_s = FIRST_S

    def next_s(self) -> float:
        """The pause before the next attempt."""
        step_s, self._step_s = self._step_s, min(2 * self._step_s, LONGEST_S)
        return step_s * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt succeeded."""
        self._step_s = FIRST_S
