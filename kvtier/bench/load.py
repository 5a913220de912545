"""What does an engine feel of the others on its host, and of one that floods it?

N engine processes (--engines) in a closed loop: conversations of the real agent trace, in turns; every loaded
byte is compared. A chunk of 1024 tokens is scaled down to 32 KiB. Four runs that share --seconds, each on a
daemon of its own: one engine alone; N engines; N engines and a process that only takes room, as fast as it
can, in a namespace of its own; the same with three quarters of the arena as the engines' namespace's floor.
Times are those that an engine waits, from Python: p50, p99 and p99.9 of all engines' calls together; load and
store are whole copies of a request's chunks. Fairness is Jain's index of the engines' requests (1: all alike,
1/N: one has all); each plays the same conversations, with content of its own. Hit rate: chunks loaded of
those asked for.

Reference of the same run: one engine alone; for hit rates N engines without a flood; for the flood, the flood
without floors. With fewer cores than engines (and one for the daemon) a time's tail is the scheduler's.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kvtier.bench.daemon import serving
from kvtier.bench.load_engine import CALLS, CHUNK_BYTES
from kvtier.bench.report import BenchSkipped, Budget, Result
from kvtier.bench.scale import Scale

ENGINES: Final = 2
SECONDS: Final = 60.0
FAIR: Final = Budget(0.9, side=">=")
NONE: Final = Budget(0.0)
KEPT: Final = Budget(0.95, of="ratio", side=">=")
_ARENA_BYTES: Final = 128 << 20
_FLOOR_BYTES: Final = _ARENA_BYTES * 3 // 4
_START_S: Final = 60.0
_END_S: Final = 120.0


@dataclass
class Run:
    """What the engines of one run saw together; `flood` is the flooding one's tally."""

    seconds: float
    engines: list[dict[str, Any]] = field(default_factory=list)
    flood: dict[str, Any] | None = None

    def sum(self, name: str) -> int:
        """Of one count, over the engines."""
        return sum(int(engine[name]) for engine in self.engines)

    @property
    def errors(self) -> list[str]:
        """Of everybody."""
        everybody = [*self.engines, *([self.flood] if self.flood else [])]
        return [str(error) for tally in everybody for error in tally["errors"]]

    @property
    def hit_rate(self) -> float:
        """Chunks loaded of those asked for."""
        return self.sum("loaded") / max(1, self.sum("chunks"))

    @property
    def fairness(self) -> float:
        """Jain's index of the engines' requests."""
        served = np.array([engine["requests"] for engine in self.engines], float)
        return float(served.sum() ** 2 / max(1.0, len(served) * (served**2).sum()))

    def us(self, call: str, percent: float) -> float:
        """A percentile of one call's time, of all engines together; 0 when it was never made."""
        times_ns = [time_ns for engine in self.engines for time_ns in engine["times_ns"][call]]
        return float(np.percentile(times_ns, percent)) / 1e3 if times_ns else 0.0


def run(scale: Scale, seconds: float | None = None, engines: int | None = None) -> list[Result]:
    """The four runs, and what they come to."""
    each_s = (seconds or scale.pick(6.0, SECONDS)) / 4
    number = engines or ENGINES
    return results(
        number,
        alone=drive(each_s, 1),
        together=drive(each_s, number),
        flooded=drive(each_s, number, flood=True),
        floored=drive(each_s, number, flood=True, floor_bytes=_FLOOR_BYTES),
    )


def drive(seconds: float, engines: int, *, flood: bool = False, floor_bytes: int = 0) -> Run:
    """One run: a daemon, `engines` of them and perhaps a flood, all started before any begins."""
    with ExitStack() as stack:
        options = ("--floors", f"engine={floor_bytes}") if floor_bytes else ()
        daemon = stack.enter_context(serving(_ARENA_BYTES, *options))
        roles = ["engine"] * engines + ["flood"] * flood
        children = [_start(stack, daemon.address, n, role) for n, role in enumerate(roles)]
        for child in children:
            _expect(child, "ready")
        for child in children:
            _send(child, f"{seconds}\n")
        tallies = [json.loads(_end(child, seconds)) for child in children]
    return Run(seconds, tallies[:engines], tallies[engines] if flood else None)


def _start(stack: ExitStack, address: str, number: int, role: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "kvtier.bench.load_engine", address, str(number), role]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(child.communicate, timeout=_START_S)
    stack.callback(child.kill)
    return child


def _expect(child: "subprocess.Popen[str]", word: str) -> None:
    line = child.stdout.readline() if child.stdout else ""
    if line.strip() != word:
        raise BenchSkipped(f"an engine process ended before it was ready: {line!r}")


def _send(child: "subprocess.Popen[str]", line: str) -> None:
    if child.stdin is not None:
        child.stdin.write(line)
        child.stdin.flush()


def _end(child: "subprocess.Popen[str]", seconds: float) -> str:
    out, _ = child.communicate(timeout=seconds + _END_S)
    if child.returncode != 0 or not out:
        raise BenchSkipped(f"an engine process ended with {child.returncode}")
    return out


def results(engines: int, alone: Run, together: Run, flooded: Run, floored: Run) -> list[Result]:
    """As a table."""
    one, many = "one engine alone", f"{engines} engines"
    runs: Sequence[Run] = (alone, together, flooded, floored)
    compared, requests = (sum(part.sum(name) for part in runs) for name in ("compared", "requests"))
    wrong, errors = sum(part.sum("wrong") for part in runs), [text for part in runs for text in part.errors]
    for text in errors[:5]:
        print(f"kvtier: bench load: {text}", file=sys.stderr)

    def moved(part: Run) -> float:
        return (part.sum("loaded") + part.sum("stored")) * CHUNK_BYTES / part.seconds / 1e9

    def rate(part: Run) -> float:
        return part.sum("requests") / part.seconds

    rows = [
        Result("wrong chunks, all runs", wrong, "", "chunks compared", compared, NONE),
        Result("errors, all runs", len(errors), "", "requests", requests, NONE),
        Result(f"requests/s, {many}", rate(together), "1/s", one, rate(alone)),
        Result(f"loaded and stored, {many}", moved(together), "GB/s", one, moved(alone)),
    ]
    for name, part in ((many, together), (f"{many}, flood", flooded), (f"{many}, flood, floor", floored)):
        rows.append(Result(f"fairness, {name}", part.fairness, "", "all alike", 1.0, FAIR))
    rate_of = "the same without a flood"
    hits = together.hit_rate
    rows += [
        Result(f"hit rate, {many}", hits, "", one, alone.hit_rate),
        Result(f"hit rate, {many}, flood", flooded.hit_rate, "", rate_of, hits),
        Result(f"hit rate, {many}, flood, floor", floored.hit_rate, "", rate_of, hits, KEPT),
    ]
    if flooded.flood and floored.flood:
        stores = [part.flood["stored"] / part.seconds for part in (flooded, floored) if part.flood]
        rows.append(Result("chunks/s that the flood stores, floor", stores[1], "1/s", "no floor", stores[0]))
    for call in CALLS:
        for percent in (50, 99, 99.9):
            rows.append(
                Result(
                    f"{call} p{percent:g}, {many}",
                    together.us(call, percent),
                    "us",
                    one,
                    alone.us(call, percent),
                )
            )
    return rows
