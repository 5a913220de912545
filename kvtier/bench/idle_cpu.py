"""What does a daemon cost that nobody uses?

CPU time of the daemon, a client attached, in the seconds after its last request. A ring thread that went on
spinning would burn a whole core, 1000 ms a second.

Reference of the same run: this process, spinning.
"""

import time
from typing import Final

from kvtier.bench.cpu_time import process_s
from kvtier.bench.daemon import client_of, fill, open_namespace, random_keys, serving
from kvtier.bench.report import Budget, Result
from kvtier.bench.scale import Scale

IDLE: Final = Budget(5.0)  # half a percent of a core
_SETTLE_S: Final = 0.2


def run(scale: Scale) -> list[Result]:
    """With a client attached, and traffic just ended."""
    seconds = scale.pick(1.0, 10.0)
    with serving(64 << 20) as daemon, client_of(daemon) as client:
        namespace = open_namespace(client, "idle-cpu")
        fill(namespace, random_keys(4096, seed=1))
        time.sleep(_SETTLE_S)
        before_s = process_s(daemon.process.pid)
        time.sleep(seconds)
        idle = (process_s(daemon.process.pid) - before_s) / seconds
    return [
        Result("idle daemon, a client attached", idle * 1e3, "ms/s", "a spinning thread", _spin() * 1e3, IDLE)
    ]


def _spin() -> float:
    wall_s, cpu_s = time.monotonic(), time.thread_time()
    while time.monotonic() - wall_s < _SETTLE_S:
        continue
    return (time.thread_time() - cpu_s) / (time.monotonic() - wall_s)
