"""How long does an engine wait for slots?

Lease and reserve of 256 chunks are one round trip each to the daemon; release, abort and commit are posted.
Measured from Python, back to back (dense) and after 1 ms of sleep (idle): engines do both.
`reserve, evicting` runs on a full arena, where every new chunk evicts one.

Reference of the same run: a round trip over a Unix socket to another process, with the same keys as its
message and no work done there.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from kvtier.bench import clock
from kvtier.bench.daemon import CHUNK_BYTES, KEY_BYTES, client_of, fill, open_namespace, random_keys, serving
from kvtier.bench.report import BenchSkipped, Budget, Result
from kvtier.bench.scale import Scale
from kvtier.bench.socket_peer import SocketPeer
from kvtier.client.namespace import Namespace
from kvtier.client.values import SlotLease

KEYS: Final = 256
IDLE_S: Final = 0.001
DENSE: Final = Budget(20.0)
IDLE: Final = Budget(120.0)
POSTED: Final = Budget(5.0)
_DRAM_BYTES: Final = 64 << 20
_SLOTS: Final = _DRAM_BYTES // CHUNK_BYTES


class _Timed:
    """Calls in pairs: the first part takes a lease, the second (posted) gives it back; each is timed."""

    def __init__(self, take: Callable[[], SlotLease], give: Callable[[SlotLease], object]) -> None:
        self._take, self._give = take, give
        self._held: SlotLease | None = None

    def take(self) -> None:
        self._held = self._take()

    def give(self) -> None:
        if self._held is None or len(self._held) != KEYS:
            raise BenchSkipped(f"a lease has {0 if self._held is None else len(self._held)} of {KEYS} chunks")
        self._give(self._held)

    def measure(self, count: int, pause_s: float) -> tuple[float, float]:
        """Medians of both parts in microseconds."""
        taken, given = [], []
        for _ in range(count):
            taken.append(clock.p50_us(self.take, 1, pause_s))
            given.append(clock.p50_us(self.give, 1))
        return clock.median(taken), clock.median(given)


def run(scale: Scale) -> list[Result]:
    """Dense and idle, interleaved with the socket."""
    rounds, count = scale.pick(2, 15), scale.pick(10, 200)
    with ExitStack() as stack:
        peer = stack.enter_context(SocketPeer(KEYS * KEY_BYTES))
        roomy, full = (_namespace(stack, name) for name in ("roomy", "full"))
        pairs = _pairs(roomy) | {"reserve, evicting": _evicting(full)}
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            for pace, pause_s in (("dense", 0.0), ("idle", IDLE_S)):
                for name, pair in pairs.items():
                    taken_us, given_us = pair.measure(count, pause_s)
                    times.setdefault((name, pace), []).append(taken_us)
                    times.setdefault((f"{name}, given back", pace), []).append(given_us)
                socket_us = clock.p50_us(peer.round_trip, count, pause_s)
                times.setdefault(("socket", pace), []).append(socket_us)
    us = {key: clock.median(samples) for key, samples in times.items()}
    return _results(us)


def _namespace(stack: ExitStack, name: str) -> Namespace:
    """Of a daemon of its own: one benchmark's evictions must not reach the other's chunks."""
    daemon = stack.enter_context(serving(_DRAM_BYTES, "--slots-max", str(_SLOTS)))
    return open_namespace(stack.enter_context(client_of(daemon)), name)


def _pairs(namespace: Namespace) -> dict[str, _Timed]:
    present = random_keys(KEYS, seed=1)
    absent = random_keys(KEYS, seed=2)
    fill(namespace, present)
    return {
        "lease": _Timed(lambda: namespace.lease_slots(present), namespace.release_slots),
        "reserve": _Timed(lambda: namespace.reserve_slots(absent), namespace.abort_slots),
    }


def _evicting(namespace: Namespace) -> _Timed:
    """Always new chunks, in an arena that is full before the first measurement."""
    fresh = random_keys(KEYS * 4096, seed=3).reshape(4096, KEYS, KEY_BYTES)
    state = {"next": 0}

    def take() -> SlotLease:
        state["next"] = (state["next"] + 1) % len(fresh)
        return namespace.reserve_slots(fresh[state["next"]])

    def give(lease: SlotLease) -> object:
        return namespace.commit_slots(lease)

    for _ in range(_SLOTS // KEYS + 1):
        lease = take()
        namespace.commit_slots(lease, wait=True)
    return _Timed(take, give)


def _results(us: dict[tuple[str, str], float]) -> list[Result]:
    results = []
    for pace, budget in (("dense", DENSE), ("idle", IDLE)):
        when = "dense" if pace == "dense" else "after 1 ms idle"
        socket_us = us["socket", pace]
        for name in ("lease", "reserve", "reserve, evicting"):
            case = f"{name} of {KEYS}, {when}"
            results.append(Result(case, us[name, pace], "us", "Unix socket round trip", socket_us, budget))
        for name, word in (("lease", "release"), ("reserve", "abort"), ("reserve, evicting", "commit")):
            posted = us[f"{name}, given back", pace]
            case = f"{word} of {KEYS} posted, {when}"
            results.append(Result(case, posted, "us", "Unix socket round trip", socket_us, POSTED))
    return results
