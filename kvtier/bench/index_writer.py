"""A process that changes the index at a steady pace, beside a measurement."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kvtier.bench.report import BenchSkipped

UPDATES_PER_S: Final = 100_000
_BATCH: Final = 64
_START_S: Final = 30.0


class IndexWriter:
    """Every line that is sent to it is answered with how many updates it has made so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def updates(self) -> tuple[float, int]:
        """(now in seconds, updates so far)."""
        if self._process.stdin is None or self._process.stdout is None:
            raise BenchSkipped("the index writer has no pipes")
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchSkipped("the index writer has ended")
        return time.monotonic(), int(json.loads(line))

    def rate_since(self, before: tuple[float, int]) -> float:
        """Updates a second since then."""
        now = self.updates()
        return (now[1] - before[1]) / (now[0] - before[0])


@contextmanager
def writing(address: str) -> Iterator[IndexWriter]:
    """A writer at the daemon of this address, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtier.bench.index_writer", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        writer = IndexWriter(process)
        writer.updates()
        yield writer
    finally:
        process.kill()
        process.communicate(timeout=_START_S)


def _write(address: str) -> None:
    import select

    from kvtier.bench.daemon import open_namespace, random_keys
    from kvtier.client.client import Client

    client = Client.connect(address, name="index-writer", deadline_ms=5000)
    namespace = open_namespace(client, "index-writer")
    keys = random_keys(_BATCH * 512, seed=3)
    made, began_s = 0, time.monotonic()
    while True:
        for start in range(0, len(keys), _BATCH):
            ahead_s = made / UPDATES_PER_S - (time.monotonic() - began_s)
            asked, _, _ = select.select([sys.stdin], [], [], max(ahead_s, 0.0))
            if asked:
                if not sys.stdin.readline():
                    return
                print(json.dumps(made), flush=True)
            grant = namespace.reserve_slots(keys[start : start + _BATCH])
            namespace.abort_slots(grant)
            made += 2 * len(grant)  # a cell comes, a cell goes


if __name__ == "__main__":
    _write(sys.argv[1])
