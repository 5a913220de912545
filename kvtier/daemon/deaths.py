"""Processes that left without a word: their reserved slots stay quarantined until the process has ended."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

WATCHED_MAX: Final = 1024
GRACE_S: Final = 600.0
"""Where nothing proves a process's end (no pidfd), the quarantine ends after this."""


class Deaths:
    """Calls `ended(session)` once for each watched session, on the event loop."""

    def __init__(self, ended: Callable[[int], None], grace_s: float = GRACE_S) -> None:
        self._ended = ended
        self._grace_s = grace_s
        self._pidfds: dict[int, int] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    @property
    def full(self) -> bool:
        """True when no more can be watched."""
        return len(self._pidfds) + len(self._timers) >= WATCHED_MAX

    def watch(self, session: int, pidfd: int | None) -> None:
        """Takes over `pidfd`; None starts the grace."""
        loop = asyncio.get_running_loop()
        if pidfd is None:
            self._timers[session] = loop.call_later(self._grace_s, self._grace_over, session)
            return
        self._pidfds[session] = pidfd
        loop.add_reader(pidfd, self._died, session)

    def forget(self, session: int) -> None:
        """It needs no watching any more."""
        if (pidfd := self._pidfds.pop(session, None)) is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        if (timer := self._timers.pop(session, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        """Stop watching; nothing more is reported."""
        for pidfd in self._pidfds.values():
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        for timer in self._timers.values():
            timer.cancel()
        self._pidfds.clear()
        self._timers.clear()

    def _died(self, session: int) -> None:
        pidfd = self._pidfds.pop(session)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._ended(session)

    def _grace_over(self, session: int) -> None:
        del self._timers[session]
        self._ended(session)
