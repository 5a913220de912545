"""Where a trial happens: a daemon on temporary paths, two engine processes that serve all through, and the
counts at the end.

What is leaked is asked of the daemon that is left when all engines have ended: leases, pins, reserved and
quarantined slots, sessions, and descriptors beyond those it had before the first engine came.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from kvtier.bench.reliability.crew import Crew
from kvtier.bench.reliability.tally import Tally
from kvtier.bench.report import BenchSkipped
from kvtier.demo.daemon import LocalDaemon, held, temporary_paths

ENGINES: Final = 2
SETTLE_S: Final = 20.0
_LOOK_S: Final = 0.005
_DRAM: Final = "48MiB"


@dataclass(slots=True)
class Outcome:
    """One row of the table."""

    fault: str
    injected: int
    tally: Tally
    leaked: int
    first_hit_s: float  # the longest of all recoveries
    new_engine_s: float  # the same, of engines that were just started
    note: str = ""


class Stand:
    """One trial's daemon and engines. `recovered` notes how soon every engine hits again."""

    def __init__(self, daemon: LocalDaemon, seed: int) -> None:
        self.daemon = daemon
        self.crew = Crew(daemon.address, seed)
        self.injected = 0
        self._first_hit_s = 0.0
        self._new_engine_s = 0.0
        self._descriptors = 0

    def begin(self) -> None:
        """Start the daemon and the engines; returns when all of them hit."""
        self.daemon.start()
        self._descriptors = self._open_descriptors()
        since_s = time.monotonic()
        self.crew.stay(ENGINES)
        self._new_engine_s = self.hit_since(since_s)

    def hit_since(self, since_s: float) -> float:
        """Until every engine has verified a hit that came after this call; the latest one, in seconds."""
        self.crew.ask("look")
        until(lambda: all(tally.first_hit_s for tally in self.crew.ask("report")), "a hit of every engine")
        return max(tally.first_hit_s for tally in self.crew.ask("report")) - since_s

    def recovered(self, since_s: float) -> None:
        """A fault was over at `since_s` (time.monotonic())."""
        self.injected += 1
        self._first_hit_s = max(self._first_hit_s, self.hit_since(since_s))

    def finish(self, fault: str, note: str = "") -> Outcome:
        """End the engines and count."""
        tally = self.crew.finish()
        leaked = self._leaked()
        return Outcome(fault, self.injected, tally, leaked, self._first_hit_s, self._new_engine_s, note)

    def _leaked(self) -> int:
        end_s = time.monotonic() + SETTLE_S
        while (found := self._left()) and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
        return len(found)

    def _left(self) -> list[str]:
        more = self._open_descriptors() - self._descriptors
        return held(self.daemon.stats()) + ["a descriptor"] * max(0, more)

    def _open_descriptors(self) -> int:
        """Of the daemon, without what comes and goes with the control channel that asks."""
        names = []
        directory = f"/proc/{self.daemon.process.pid}/fd"
        for name in os.listdir(directory):
            try:
                names.append(os.readlink(f"{directory}/{name}"))
            except FileNotFoundError:
                continue  # closed meanwhile
        return sum("kvtier" in name or "pidfd" in name for name in names)


@contextmanager
def stand(seed: int, *options: str, dram: str = _DRAM, code: str = "") -> Iterator[Stand]:
    """A stand, not begun yet. options: flags of `kvtier serve`. code: what the process runs instead."""
    with temporary_paths("kvt-rel-") as (directory, shm_dir):
        daemon = LocalDaemon(directory, dram=dram, shm_dir=shm_dir, options=options)
        if code:
            daemon.command[2] = code
        made = Stand(daemon, seed)
        try:
            yield made
        finally:
            made.crew.abandon()
            if daemon.alive:
                daemon.kill()


def until(condition: Callable[[], object], what: str, timeout_s: float = SETTLE_S) -> None:
    """Look for the effect of other processes. BenchSkipped when it does not come."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise BenchSkipped(f"{what}: not within {timeout_s:g} s")
        time.sleep(_LOOK_S)
