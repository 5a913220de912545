"""Two hosts on one root that is too small for what they store, one of which dies again and again: every byte
that is read is right, the quota holds, nothing stays behind.

KVTIER_SOAK_SECONDS: how long, instead of what a test run has time for.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Daemon, until
from storage_soak import DiskWatch, at_pace, disk_bytes, end_engine, running_engine

StartDaemon = Callable[..., Daemon]

SECONDS = float(os.environ.get("KVTIER_SOAK_SECONDS", "18"))
INTERVAL_S = 3.0
KILL_EVERY = 2  # intervals
QUOTA = 512 << 20
DEAD_AFTER = "1s"
COUNTED = (
    "demoted_chunks",
    "demoted_bytes",
    "promoted_chunks",
    "promoted_bytes",
    "deleted_segments",
    "deleted_bytes",
    "adopted_segments",
    "copied_forward_bytes",
    "sealed_segments",
    "failed_missing",
    "failed_corrupt",
    "failed_io",
    "dropped_full",
    "dropped_queue",
    "dropped_evicted",
    "dropped_present",
    "temporaries_removed",
    "times_adopted",
    "indexes_refused",
)


class Host:
    """A daemon and what all its lives have counted."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.before = Counter[str]()

    def counts(self) -> Counter[str]:
        counters = self.daemon.counters()
        return self.before + Counter({name: counters[f"storage_{name}"] for name in COUNTED})

    def die_and_come_back(self) -> None:
        self.before = self.counts()
        self.daemon.kill()
        self.daemon.start(fresh=True)


@pytest.mark.slow
def test_two_hosts_share_a_root_that_is_too_small(
    start_daemon: StartDaemon, tmp_path: Path, seed: int
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    # Segments of 2 MiB: the quota is kept in whole segments and in what a host reserves for its open one, so
    # both hosts' together must be small beside the 5 %.
    hosts = [
        Host(
            start_daemon(
                "64MiB",
                *("--storage", str(root), "--storage-quota", str(QUOTA), "--storage-segment", "2MiB"),
                *("--storage-poll", "100ms", "--storage-dead-after", DEAD_AFTER),
            )
        )
        for _ in range(2)
    ]
    usages: list[int] = []
    kills = 0

    def look(passed_s: float) -> None:
        nonlocal kills
        usages.append(disk_bytes(root))
        print(f"{passed_s:5.0f} s: {usages[-1] / QUOTA:.3f} of the quota, at most {watch.most / QUOTA:.3f}")
        if len(usages) % KILL_EVERY == 0:
            hosts[0].die_and_come_back()
            kills += 1

    with (
        DiskWatch(root) as watch,
        running_engine(hosts[0].daemon.address, 0, seed) as one,
        running_engine(hosts[1].daemon.address, 1, seed + 1) as two,
    ):
        filled_s = time.monotonic()
        until(lambda: disk_bytes(root) >= QUOTA * 0.95, "the quota is reached", 60.0)
        filled_s = time.monotonic() - filled_s
        at_pace(SECONDS, INTERVAL_S, look)
        seen = [end_engine(process, f"an engine, seed {seed}") for process in (one, two)]
    counts = [host.counts() for host in hosts]
    total = counts[0] + counts[1]
    print(
        f"full after {filled_s:.1f} s; {kills} kills; engines {seen}; host 0 {counts[0]}; host 1 {counts[1]}"
    )
    written = total["demoted_bytes"]
    amplification = written / (written - total["copied_forward_bytes"])
    print(f"write amplification {amplification:.3f}, most on disk {watch.most / QUOTA:.4f}")

    assert total["failed_corrupt"] == total["failed_io"] == total["indexes_refused"] == 0
    assert total["deleted_segments"] > 50  # reclaim
    assert counts[1]["adopted_segments"] > 10
    assert total["promoted_chunks"] > 100
    assert amplification < 1.25
    for counted in seen:
        assert counted["loaded"] > 200
        assert counted["stored"] > 200
    assert seen[0]["losses"] == kills > 0
    assert watch.most <= QUOTA
    for usage in usages:
        assert usage >= QUOTA * 0.95

    for host in hosts:
        host.daemon.assert_nothing_held()
        counters = host.daemon.counters()
        assert counters["promoting_slots"] == 0
        assert host.daemon.stop() == 0
    done = subprocess.run(
        [sys.executable, "-m", "kvtier.cli.main", "verify", "--json", str(root)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    report = json.loads(done.stdout)
    bad = [finding for finding in report["findings"] if finding["severity"] == "bad"]
    assert (done.returncode, bad) == (0, []), report["findings"]
    assert report["records"] > 0
