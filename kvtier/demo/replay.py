"""The agent trace at full length through a real daemon and two client processes, every byte verified.

Chunks are scaled down (16 KiB stand for the megabytes that 256 tokens of a real model take) and so is DRAM,
to a part of the trace's working set, so that the daemon must evict all the time.
"""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from kvtier.demo import replay_worker
from kvtier.demo.daemon import LocalDaemon, held
from kvtier.demo.replay_worker import Outcome
from kvtier.demo.schedule import Turn
from kvtier.errors import DaemonUnavailable, KVTierError
from kvtier.types import DaemonStats

WORKERS = 2
ANSWER_S = 60.0  # longest wait for one request
SETTLE_S = 10.0


@dataclass(slots=True)
class Replay:
    """What a replay has seen so far."""

    requests: int = 0
    total: Outcome = field(default_factory=Outcome)
    simulated_s: float = 0.0
    wall_s: float = 0.0
    memory: list[dict[str, int]] = field(default_factory=list)  # of the daemon, one at each sample
    stats: DaemonStats | None = None  # after the last request
    held: list[str] = field(default_factory=list)  # what was not given back at the end

    @property
    def hit_rate(self) -> float:
        """Chunks loaded, of those asked for."""
        return self.total.loaded / max(1, self.total.chunks)

    @property
    def faults(self) -> list[str]:
        """Why this replay is a failure; empty when it is none."""
        found = [f"{self.total.wrong} chunks with wrong bytes"] if self.total.wrong else []
        found += [f"{self.total.lost} chunks changed under a lease"] if self.total.lost else []
        found += [f"left behind: {item}" for item in self.held]
        return found if self.total.loaded else [*found, "no chunk was ever hit"]


def play(
    daemon: LocalDaemon,
    turns: Iterator[Turn],
    *,
    chunk_bytes: int,
    sample_every_s: float = 3600.0,
    progress: Callable[[Replay], None] = lambda replay: None,
) -> Replay:
    """Send every turn to one of two client processes; a session's turns follow each other.

    `sample_every_s`: simulated time between two looks at the daemon's memory. Raises KVTierError when a
    client process fails or does not answer.
    """
    replay = Replay(memory=[daemon.memory_bytes()])
    began_s = time.perf_counter()
    with _workers(daemon.address, chunk_bytes) as pipes:
        _drive(daemon, pipes, turns, replay, sample_every_s, began_s, progress)
        replay.stats = daemon.stats()
    replay.wall_s = time.perf_counter() - began_s
    deadline_s = time.monotonic() + SETTLE_S
    while (found := held(daemon.stats())) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    replay.held = found
    replay.memory.append(daemon.memory_bytes())
    progress(replay)
    return replay


def _drive(
    daemon: LocalDaemon,
    pipes: list[Connection],
    turns: Iterator[Turn],
    replay: Replay,
    sample_every_s: float,
    began_s: float,
    progress: Callable[[Replay], None],
) -> None:
    idle, busy = list(pipes), dict[Connection, str]()
    sampled_s = 0.0

    def collect() -> None:
        for pipe in _ready(list(busy)):
            replay.total.add(Outcome(**_answer(pipe)))
            replay.requests += 1
            replay.wall_s = time.perf_counter() - began_s
            del busy[pipe]
            idle.append(pipe)  # at the end: a session's next turn tends to go to the other process
            progress(replay)

    for turn in turns:
        while not idle or turn.session in busy.values():
            collect()
        if not len(turn.keys):  # a prompt shorter than one chunk
            replay.requests += 1
            continue
        pipe = idle.pop(0)
        pipe.send_bytes(turn.keys.tobytes())
        busy[pipe] = turn.session
        replay.simulated_s = turn.at_s
        if turn.at_s - sampled_s >= sample_every_s:
            sampled_s = turn.at_s
            replay.memory.append(daemon.memory_bytes())
    while busy:
        collect()


@contextmanager
def _workers(address: str, chunk_bytes: int) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(WORKERS)]
    processes = [
        context.Process(target=replay_worker.main, args=(theirs, address, chunk_bytes, number), daemon=True)
        for number, (_, theirs) in enumerate(pairs)
    ]
    pipes = [ours for ours, _ in pairs]
    try:
        for process, (_, theirs) in zip(processes, pairs, strict=True):
            process.start()
            theirs.close()  # so that its end shows as end of file
        for pipe in pipes:
            _ready([pipe])
            _answer(pipe)
        yield pipes
        for pipe in pipes:
            pipe.send_bytes(b"")
        for process in processes:
            process.join(SETTLE_S)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join(SETTLE_S)


def _ready(pipes: list[Connection]) -> list[Connection]:
    ready = wait(pipes, ANSWER_S)
    if not ready:
        raise DaemonUnavailable(f"no client process answered in {ANSWER_S:g} s")
    return [pipe for pipe in ready if isinstance(pipe, Connection)]


def _answer(pipe: Connection) -> dict[str, Any]:
    try:
        answer = json.loads(pipe.recv_bytes())
    except EOFError:
        raise DaemonUnavailable("a client process ended without an answer") from None
    if "error" in answer:
        raise KVTierError(answer["error"])
    return dict(answer)
