"""What do engines notice when something breaks? Nothing but misses, is the promise; here it is tried.

Real processes: a daemon, two engines that serve all through a trial (lookup, lease, load, compare every byte,
release; reserve, store, commit; on tensors of their own), and engines that come to be killed. A fault is
injected again and again, at random moments; after each, every engine must hit again by itself.

Counted for each fault: chunks with a wrong byte; calls of an engine that hung (waited 250 ms or more); what
was leaked (leases, pins, reserved or quarantined slots, sessions, and the daemon's descriptors, once all
engines have ended); requests that failed (an exception that is not kvtier's own, or an engine that did not
end in order). Then the longest wait of any call, without what its thread waited for a core, and the longest
time from the end of a fault until every engine had hit again (after a restart: from the process's start).

Storage fails through a file system that does what a plan says; its bits are flipped on a real directory.
Reference of the same run: what the count is a part of; for the longest wait the deadline; for the first hit
an engine's first hit at the start of the trial, from the start of its process.
--write FILE puts the table into a file; KVTIER_RELIABILITY_SEED replays a run's choices.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from kvtier.bench.reliability import daemon_faults, engine_faults, storage_faults
from kvtier.bench.reliability.stand import Outcome
from kvtier.bench.reliability.tally import PROMISED_MS
from kvtier.bench.report import BenchSkipped, Budget, Result
from kvtier.bench.scale import Scale

SEED_VARIABLE: Final = "KVTIER_RELIABILITY_SEED"
NONE: Final = Budget(0)
WAIT: Final = Budget(60.0)  # the deadline, and being woken after it
Trial = Callable[[int, int], Outcome]

# What is done, and how often: to see that it runs; for the table.
_TRIALS: Final[tuple[tuple[Trial, int, int], ...]] = (
    (partial(engine_faults.killed, "store"), 5, 100),
    (partial(engine_faults.killed, "load"), 5, 100),
    (engine_faults.hung, 1, 5),
    (daemon_faults.killed, 2, 20),
    (daemon_faults.hung, 3, 20),
    (daemon_faults.restarted, 1, 10),
    (daemon_faults.upgraded, 1, 5),
    (daemon_faults.of_other_metadata, 1, 5),
    (daemon_faults.torn, 1, 5),
    (daemon_faults.short_of_memory, 1, 5),
    (daemon_faults.without_sockets, 1, 5),
    (daemon_faults.without_arena, 1, 5),
    (partial(storage_faults.failing, "EIO", "every call fails (EIO)"), 1, 5),
    (partial(storage_faults.failing, "ENOSPC", "no space (ENOSPC)"), 1, 5),
    (partial(storage_faults.failing, "HANG", "every call hangs"), 1, 5),
    (storage_faults.corrupted, 2, 10),
)


def run(scale: Scale) -> list[Result]:
    """Every trial. BenchSkipped names the fault after which something did not come back, and the seed."""
    return [result for outcome in outcomes(scale) for result in results(outcome)]


def outcomes(scale: Scale) -> Iterator[Outcome]:
    """One after the other."""
    seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(1 << 31))
    for trial, quick, normal in _TRIALS:
        try:
            yield trial(scale.pick(quick, normal), seed)
        except BenchSkipped as reason:
            raise BenchSkipped(f"{trial}: {reason} ({SEED_VARIABLE}={seed})") from None


def results(outcome: Outcome) -> list[Result]:
    """One number a column."""

    def row(
        what: str, value: float, unit: str, of: str, reference: float, budget: Budget | None = None
    ) -> Result:
        return Result(f"{outcome.fault}: {what}", value, unit, of, reference, budget)

    tally, injected = outcome.tally, outcome.injected
    return [
        row("injected", injected, "", outcome.note or "asked for", injected),
        row("chunks compared", tally.loaded, "", "requests", tally.requests),
        row("wrong bytes", tally.wrong, "", "chunks compared", tally.loaded, NONE),
        row("hung calls", tally.hung, "", "calls", tally.calls, NONE),
        row("leaked", outcome.leaked, "", "injected", injected, NONE),
        row("failed requests", tally.failed, "", tally.why or "requests", tally.requests, NONE),
        row("longest wait", tally.longest_ms, "ms", "the deadline", PROMISED_MS, WAIT),
        row("first hit", outcome.first_hit_s, "s", "from an engine's start", outcome.new_engine_s),
    ]
