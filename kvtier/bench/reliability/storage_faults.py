"""Trials that do something to storage, with an arena so small that prompts keep coming back from there."""

import os
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kvtier.bench.reliability.faulty_storage import Plan
from kvtier.bench.reliability.stand import Outcome, Stand, stand, until

_DRAM: Final = "8MiB"  # the prompts that all engines know take 15 MiB
_FAULT_S: Final = 0.7
_SERVE: Final = (
    "from kvtier.bench.reliability.faulty_storage import install; install(); "
    "from kvtier.cli.main import main; main()"
)
_OPTIONS: Final = ("--storage-poll", "100ms", "--storage-segment", "1MiB")


def failing(word: str, what: str, times: int, seed: int) -> Outcome:
    """EIO, ENOSPC or HANG for a while, then none."""
    rng = random.Random(seed)  # noqa: S311  a trial is replayed from its seed
    with TemporaryDirectory(prefix="kvt-rel-") as root:
        plan = Plan(Path(root, "plan"))
        options = ("--storage", f"local://{root}/objects", *_OPTIONS)
        Path(root, "objects").mkdir()
        with stand(seed, *options, dram=_DRAM, code=_SERVE) as trial:
            trial.daemon.command.insert(3, str(Path(root, "plan")))
            _begin(trial)
            for _ in range(times):
                plan.set(word)
                time.sleep(rng.uniform(0.5, 1.0) * _FAULT_S)  # the fault's length is the trial's input
                plan.set("")
                _recovered(trial, time.monotonic())
            return trial.finish(f"storage: {what}")


def corrupted(times: int, seed: int) -> Outcome:
    """Bits of segments are flipped under a serving daemon; each chunk that holds one is to be a miss."""
    rng = random.Random(seed)  # noqa: S311
    with (
        TemporaryDirectory(prefix="kvt-rel-") as root,
        stand(seed, "--storage", root, *_OPTIONS, dram=_DRAM) as trial,
    ):
        _begin(trial)
        for _ in range(times):
            _flip(Path(root), rng)
            _recovered(trial, time.monotonic())
        found = trial.daemon.stats().counters["storage_failed_corrupt"]
        return trial.finish("storage: flipped bits in every segment", f"{found} records refused")


def _begin(trial: Stand) -> None:
    trial.begin()
    until(lambda: _promoted(trial) > 0, "chunks come back from storage")


def _recovered(trial: Stand, since_s: float) -> None:
    """Hits of engines, which DRAM alone gives as well, and then a chunk from storage."""
    before = _promoted(trial)
    trial.recovered(since_s)
    until(lambda: _promoted(trial) > before, "chunks come back from storage again")


def _promoted(trial: Stand) -> int:
    return trial.daemon.stats().counters["storage_promoted_chunks"]


def _flip(root: Path, rng: random.Random) -> None:
    """One bit in every 128 KiB, so in about every second chunk."""
    for path in root.rglob("*.kvs"):
        with path.open("r+b") as file:
            for start in range(0, os.fstat(file.fileno()).st_size, 128 << 10):
                at = start + rng.randrange(64 << 10)
                file.seek(at)
                byte = file.read(1)
                if byte:
                    file.seek(at)
                    file.write(bytes([byte[0] ^ (1 << rng.randrange(8))]))
