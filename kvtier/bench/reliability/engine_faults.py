"""Trials that kill or stop an engine in the middle of its work, while two others serve."""

import random
import signal
import time
from dataclasses import replace
from typing import Final

from kvtier.bench.reliability.engine import Work
from kvtier.bench.reliability.stand import Outcome, Stand, stand, until
from kvtier.demo.daemon import held

_LEASE_S: Final = 1.0  # the shortest that a daemon can be told


def killed(work: Work, times: int, seed: int) -> Outcome:
    """An engine that does nothing but store, or load, is killed at a random moment of it."""
    rng = random.Random(seed)  # noqa: S311  a trial is replayed from its seed
    with stand(seed) as trial:
        trial.begin()
        for _ in range(times):
            victim = trial.crew.start(work)
            until(lambda: _at_work(victim.ask("report"), work), "the victim is at work")  # noqa: B023
            time.sleep(rng.uniform(0.0, 0.01))  # the moment is the trial's input, nothing waits for it
            trial.crew.count(victim.ask("report"))
            victim.kill()
            since_s = time.monotonic()
            _await_gone(trial)
            trial.recovered(since_s)
        return trial.finish(f"engine killed (-9) while it {work}s")


def hung(times: int, seed: int) -> Outcome:
    """An engine stops with its leases out until they expire, and goes on later."""
    with stand(seed, "--lease-timeout", f"{_LEASE_S:g}s") as trial:
        trial.begin()
        for _ in range(times):
            victim = trial.crew.start()
            until(lambda: _at_work(victim.ask("report"), "store"), "the victim is at work")  # noqa: B023
            victim.signal(signal.SIGSTOP)
            until(lambda: not _leases(trial), "its leases are taken back", 5 * _LEASE_S)
            victim.signal(signal.SIGCONT)
            since_s = time.monotonic()
            trial.recovered(since_s)
            # Its own clock went on while it stood still, so its waits say nothing.
            trial.crew.count(replace(victim.ask("report"), hung=0, longest_ms=0.0, longest_wall_ms=0.0))
            trial.crew.total.failed += not victim.end()
            _await_gone(trial)
        return trial.finish("engine stopped (SIGSTOP) beyond its leases, then continued")


def _at_work(tally: object, work: Work) -> bool:
    return bool(getattr(tally, {"store": "stored", "load": "loaded", "both": "requests"}[work]))


def _leases(trial: Stand) -> int:
    """Leases of engines other than those that serve all through."""
    sessions = trial.daemon.stats().sessions
    staying = len(trial.crew.staying)
    return sum(info.read_leases + info.write_leases for info in sessions[staying:])


def _await_gone(trial: Stand) -> None:
    """Until only the staying engines have sessions, and nothing is quarantined for anybody."""

    def gone() -> bool:
        stats = trial.daemon.stats()
        return len(stats.sessions) == len(trial.crew.staying) and not stats.counters["quarantined_slots"]

    until(gone, f"what the engine held comes back; {held(trial.daemon.stats())}")
