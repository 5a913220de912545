"""A daemon of one's own for a demo or a test: a real `kvtier serve` process on temporary paths."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

from kvtier.client.channel import ControlChannel
from kvtier.errors import DaemonUnavailable, KVTierError
from kvtier.types import DaemonStats

READY_S: Final = 20.0
STOP_S: Final = 20.0
_SERVE: Final = "from kvtier.cli.main import main; main()"
_LOG_TAIL_BYTES: Final = 4000


SHM: Final = "/dev/shm"  # noqa: S108 - where an arena lies, not a place for temporary files


@contextmanager
def temporary_paths(prefix: str = "kvt-", shm_root: str = SHM) -> Iterator[tuple[Path, Path]]:
    """A directory for a daemon's socket and log, and a path for its arena; both are removed afterwards.

    A socket's path must be short, so `prefix` must be.
    """
    with (
        TemporaryDirectory(prefix=prefix) as directory,
        TemporaryDirectory(prefix=prefix, dir=shm_root) as shm,
    ):
        yield Path(directory), Path(shm, "arena")


@contextmanager
def temporary_daemon(dram: str, *options: str, prefix: str = "kvt-") -> "Iterator[LocalDaemon]":
    """A daemon on temporary paths that are removed afterwards."""
    with (
        temporary_paths(prefix) as (directory, shm_dir),
        LocalDaemon(directory, dram=dram, shm_dir=shm_dir, options=options) as daemon,
    ):
        yield daemon


class LocalDaemon:
    """`kvtier serve` with its socket, log and arena under `directory` (the arena under `shm_dir`).

    Started by `start` or by entering it; stopped at the exit, by SIGTERM and in order. Files stay for a look.
    """

    def __init__(self, directory: Path, *, dram: str, shm_dir: Path, options: tuple[str, ...] = ()) -> None:
        """`options`: further flags of `kvtier serve`. `dram`: a size, such as 64MiB."""
        self.directory = directory
        self.shm_dir = shm_dir
        self.address = f"unix:{directory / 'kvtier.sock'}"
        self.log_path = directory / "daemon.log"
        self.command = [
            *(sys.executable, "-c", _SERVE, "serve", "--address", self.address),
            *("--dram", dram, "--shm-dir", str(shm_dir), *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    # ---- life ----

    def start(self, ready_s: float = READY_S, *, fresh: bool = False) -> Self:
        """Start it and wait until it answers. KVTierError with the end of its log when it does not.

        fresh: with an empty arena; else what it has left is served again.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVTIER_")}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.command, *(["--fresh"] if fresh else [])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        try:
            self._wait_ready(ready_s)
        except KVTierError:
            self.kill()
            raise
        return self

    def _wait_ready(self, ready_s: float) -> None:
        deadline_s = time.monotonic() + ready_s
        with ControlChannel(self.address, timeout_s=ready_s) as control:
            while not control.wait_reachable(0.2):
                if self.process.poll() is not None:
                    raise DaemonUnavailable(f"kvtier serve ended ({self.process.returncode}):\n{self.log()}")
                if time.monotonic() > deadline_s:
                    raise DaemonUnavailable(f"kvtier serve not ready in {ready_s:g} s:\n{self.log()}")
            control.daemon_stats()

    def stop(self) -> int:
        """SIGTERM; returns the exit code. A daemon that does not end in time is killed: -9."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode

    def kill(self) -> None:
        """SIGKILL, as a crash would end it."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(STOP_S)

    def signal(self, number: int) -> None:
        """Send a signal: SIGSTOP makes it hang (every thread has stopped on return), SIGCONT go on."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- observation ----

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The running process, or the one that ran last."""
        if self._process is None:
            raise DaemonUnavailable("this daemon was never started")
        return self._process

    @property
    def alive(self) -> bool:
        """The process has not ended."""
        return self._process is not None and self._process.poll() is None

    def stats(self) -> DaemonStats:
        """What it counts, asked over its control channel."""
        with ControlChannel(self.address) as control:
            return control.daemon_stats()

    def memory_bytes(self) -> dict[str, int]:
        """Resident memory: `anon` is its own, `shmem` the shared memory it has touched, `total` all."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        rows = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        names = {"total": "VmRSS", "anon": "RssAnon", "shmem": "RssShmem"}
        return {name: int(rows[row].split()[0]) << 10 for name, row in names.items()}

    def log(self) -> str:
        """The end of its log."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def leftovers(self) -> list[str]:
        """After a stop: files that should be gone. The arena itself stays, on purpose."""
        sockets = self.directory.glob("*.sock*")
        arena = self.shm_dir.glob("*") if self.shm_dir.exists() else ()
        kept = ("arena.data", "arena.meta")
        return sorted(str(path) for path in (*sockets, *arena) if path.name not in kept)


def held(stats: DaemonStats) -> list[str]:
    """What is held although it should not be once no engine is attached: sessions, leases, pins, slots."""
    found = [f"session {item.session} ({item.client}, pid {item.pid})" for item in stats.sessions]
    names = ("read_leases", "write_leases", "pinned_slots", "reserved_slots", "quarantined_slots")
    counts = {name: stats.counters.get(name, 0) for name in names}
    counts["quarantined_slots"] -= stats.counters.get("late_slots", 0)  # theirs is a matter of time alone
    return found + [f"{name}: {count}" for name, count in counts.items() if count]
