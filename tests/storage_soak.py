"""The engine of the two-host soak: hosts that share one small root, engines that store and load a growing set
of prompts, and an eye on what the root takes on disk.

One engine process per host: lookup, lease, wait, compare every byte, release; reserve the rest, commit.
The test kills a host with -9 now and then; it comes back as another host while its old directory is still
there, and its peer takes that over once it has been still for long enough.

Prompts: a prefix that many share, then chunks of their own. The newest are asked for most (Zipf by age), and
either engine asks for prompts of both: chunks cross hosts, and old ones are asked for after they went.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness import SETTLE_S, bytes_of, child, key_of, line_of

from kvtier import Client, DaemonUnavailable, LeaseExpired, Namespace

CHUNK = 256 << 10
PRINT = {"model": "two hosts"}
PREFIXES = 4
PREFIX_CHUNKS = 3
OWN_CHUNKS = 9
NEW_SHARE = 0.35  # of the requests: a prompt that nobody has asked for
PAUSE_S = 0.03  # of an engine between two requests

CHILD = """
import sys
from storage_soak import engine
engine(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
"""


# ---- an engine ----


def prompt(engine: int, number: int) -> list[bytes]:
    """The keys of one prompt."""
    prefix = (engine * 7 + number) % PREFIXES
    keys = [key_of("prefix", prefix, i) for i in range(PREFIX_CHUNKS)]
    return keys + [key_of("own", engine, number, i) for i in range(OWN_CHUNKS)]


def ages(rng: random.Random) -> Iterator[int]:
    """0 most often, then 1, ...: a Zipf distribution cut at 1000."""
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(1000)))
    while True:
        yield rng.choices(range(1000), cum_weights=weights)[0]


def request(ns: Namespace, keys: list[bytes], seen: Counter[str]) -> None:
    """What an adapter does for one prompt."""
    with ns.lease(keys) as read:
        there = read.wait(SETTLE_S)
        lost = set() if there else set(read.failed)
        good = [i for i, key in enumerate(read.keys) if key not in lost]
        for i in good:
            assert read.views[i] == bytes_of(read.keys[i], CHUNK), f"wrong bytes under {read.keys[i].hex()}"
        # A daemon that died under the lease says so here, and nothing that was read counts.
        if read.valid() or (lost and set(read.failed) == lost):
            seen["loaded"] += len(good)
            seen["lost"] += len(lost)
        else:
            seen["interrupted"] += 1
    with ns.reserve(keys) as write:
        for key, view in zip(write.keys, write.views, strict=True):
            view[:] = bytes_of(key, CHUNK)
        if write.commit():
            seen["stored"] += len(write.keys)


def engine(address: str, number: int, seed: int) -> None:
    """Requests until a line comes on stdin, then the counts as one line of JSON."""
    rng, seen = random.Random(seed), Counter[str]()
    age = ages(rng)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    with Client.connect(address, deadline_ms=5000, managed=True, name=f"engine {number}") as client:
        ns = client.namespace(PRINT, CHUNK)
        print("go", flush=True)
        while not stop.wait(PAUSE_S):
            if rng.random() < NEW_SHARE:
                who, which = number, seen["prompts"]
                seen["prompts"] += 1
            else:
                # Of the other's prompts it knows as many as it has itself: they go on at about one pace.
                who, which = rng.randrange(2), seen["prompts"] - 1 - next(age)
            if which < 0:
                continue
            try:
                request(ns, prompt(who, which), seen)
                seen["requests"] += 1
            except (DaemonUnavailable, LeaseExpired):
                seen["unavailable"] += 1  # a managed client attaches again by itself
        seen["losses"] = client.counters()["losses"]
    print(json.dumps(seen), flush=True)


@contextmanager
def running_engine(address: str, number: int, seed: int) -> "Iterator[subprocess.Popen[str]]":
    """An engine process that has begun."""
    with child(CHILD, address, number, seed) as process:
        line_of(process, f"engine {number}")
        yield process


def end_engine(process: "subprocess.Popen[str]", what: str) -> Counter[str]:
    """Its counts; AssertionError when it failed."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write("\n")
        process.stdin.flush()
    return Counter(json.loads(line_of(process, what)))


# ---- an eye on the root ----


def disk_bytes(path: Path) -> int:
    """What `du` would say of the files below it: blocks that are taken, reserved ones too."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(path) as entries:  # renamed or removed meanwhile
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    total += disk_bytes(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


class DiskWatch:
    """Looks at what a directory takes, many times a second, on a thread of its own."""

    def __init__(self, root: Path, every_s: float = 0.05) -> None:
        self.most = 0
        self._root = root
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.most = max(self.most, disk_bytes(self._root))

    def __enter__(self) -> "DiskWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def at_pace(seconds: float, every_s: float, do: Callable[[float], None]) -> None:
    """`do(seconds since the beginning)` every so often, for so long."""
    began_s = time.monotonic()
    for turn in itertools.count(1):
        due_s = turn * every_s
        if due_s > seconds + every_s / 2:
            return
        threading.Event().wait(max(0.0, began_s + due_s - time.monotonic()))
        do(time.monotonic() - began_s)
