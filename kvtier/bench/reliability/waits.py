"""How long a call of an engine waits for others: wall time less what its thread waited for a core.

On a machine with more work than cores a thread waits for a core whatever it calls. The kernel counts that for
each thread (the second number of schedstat), so it is told from a wait for the daemon. Where the kernel does
not count it, the wall time stands.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kvtier.bench.reliability.tally import HUNG_MS, Tally

_SCHEDSTAT: Final = "/proc/thread-self/schedstat"


class Waits:
    """Of one thread, which makes it and alone uses it."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        try:
            self._fd = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    @contextmanager
    def timed(self, call: str) -> Iterator[None]:
        """Of what is done inside, whether it raises or not."""
        queued_ns, began_ns = self._queued_ns(), time.monotonic_ns()
        try:
            yield
        finally:
            wall_ms = (time.monotonic_ns() - began_ns) / 1e6
            self._note(call, wall_ms, wall_ms - (self._queued_ns() - queued_ns) / 1e6)

    def _note(self, call: str, wall_ms: float, waited_ms: float) -> None:
        tally = self._tally
        tally.calls += 1
        tally.longest_wall_ms = max(tally.longest_wall_ms, wall_ms)
        tally.hung += waited_ms > HUNG_MS
        if waited_ms > tally.longest_ms:
            tally.longest_ms, tally.longest_call = waited_ms, call

    def _queued_ns(self) -> int:
        return int(os.pread(self._fd, 64, 0).split()[1]) if self._fd >= 0 else 0
