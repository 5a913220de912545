"""`Breaker`: after a load that failed, nothing is promised for a while.

SGLang ends a request whose load failed with an error that its user sees. So a fault that stays (a medium, a
daemon that restarts again and again) must not cost every request that it could touch.
"""

import threading
import time
from collections.abc import Callable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Breaker:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._until_s = 0.0

    @property
    def open(self) -> bool:
        """Nothing may be promised now."""
        with self._lock:
            return self._clock() < self._until_s

    def failed(self) -> None:
        """A load has failed: the next pause is twice the last one."""
        with self._lock:
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
            self._until_s = self._clock() + self._pause_s

    def landed(self) -> None:
        """A load has landed: pauses are short again."""
        with self._lock:
            self._pause_s = 0.0
