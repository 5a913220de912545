"""Trials that do something to the daemon, or to what it stands on, while two engines serve."""

import random
import resource
import shutil
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvtier.bench.reliability.stand import Outcome, Stand, stand, until
from kvtier.types import PROTOCOL_VERSION

_PAUSE_S: Final = 0.3  # a daemon that hangs longer than any deadline
_OTHER_PROTOCOL: Final = (
    "import kvtier.types; kvtier.types.PROTOCOL_VERSION += 1; from kvtier.cli.main import main; main()"
)
_META_VERSION_OFFSET: Final = 8


def killed(times: int, seed: int) -> Outcome:
    """kill -9, and started again: committed chunks are served on."""

    def fault(trial: Stand, rng: random.Random) -> float:
        trial.daemon.kill()
        return _start(trial)

    return _repeat("daemon killed (-9) and started again", fault, times, seed)


def restarted(times: int, seed: int) -> Outcome:
    """SIGTERM, and started again."""

    def fault(trial: Stand, rng: random.Random) -> float:
        trial.daemon.stop()
        return _start(trial)

    return _repeat("daemon restarted in order", fault, times, seed)


def hung(times: int, seed: int) -> Outcome:
    """SIGSTOP for a while."""

    def fault(trial: Stand, rng: random.Random) -> float:
        trial.daemon.signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0.06, _PAUSE_S))  # the fault's length is the trial's input
        return _go_on(trial)

    return _repeat("daemon stopped (SIGSTOP), then continued", fault, times, seed)


def upgraded(times: int, seed: int) -> Outcome:
    """A daemon of another protocol comes, whom these engines cannot use, and goes again."""

    def fault(trial: Stand, rng: random.Random) -> float:
        ours = trial.daemon.command[2]
        trial.daemon.stop()
        trial.daemon.command[2] = _OTHER_PROTOCOL
        trial.daemon.start()
        time.sleep(_PAUSE_S)
        trial.daemon.stop()
        trial.daemon.command[2] = ours
        return _start(trial)

    note = f"engines of protocol {PROTOCOL_VERSION} go without cache while a daemon of another one serves"
    return _repeat("daemon of another protocol version, then of the right one", fault, times, seed, note)


def of_other_metadata(times: int, seed: int) -> Outcome:
    """The arena is of another version: it starts empty, and fills again."""

    def fault(trial: Stand, rng: random.Random) -> float:
        trial.daemon.kill()
        with (trial.daemon.shm_dir / "arena.meta").open("r+b") as file:
            file.seek(_META_VERSION_OFFSET)
            file.write(struct.pack("<I", 0))
        return _start(trial)

    return _repeat("arena of another metadata version", fault, times, seed, "starts empty")


def torn(times: int, seed: int) -> Outcome:
    """Slot records as a kill in the middle of a change leaves them: the sequence counter odd."""

    def fault(trial: Stand, rng: random.Random) -> float:
        trial.daemon.kill()
        path = trial.daemon.shm_dir / "arena.meta"
        data = bytearray(path.read_bytes())
        (slots_max,) = struct.unpack_from("<I", data, 40)
        (slots_offset,) = struct.unpack_from("<Q", data, 64)
        used = [
            at
            for at in range(slots_offset, slots_offset + 64 * slots_max, 64)
            if data[at + 12] == 2  # committed
        ]
        with path.open("r+b") as file:
            for at in rng.sample(used, len(used) // 4):
                file.seek(at)
                file.write(struct.pack("<I", struct.unpack_from("<I", data, at)[0] | 1))
        since_s = _start(trial)
        kept = trial.daemon.stats().counters["restart_kept"]
        trial.crew.total.wrong += abs(
            len(used) - len(used) // 4 - kept
        )  # torn and kept, or whole and dropped
        return since_s

    return _repeat(
        "a quarter of the slots torn, daemon started again", fault, times, seed, "torn ones are dropped"
    )


def without_sockets(times: int, seed: int) -> Outcome:
    """The sockets' directory is emptied, then every session is lost."""

    def fault(trial: Stand, rng: random.Random) -> float:
        for path in trial.daemon.directory.glob("*.sock*"):
            path.unlink()
        trial.daemon.signal(signal.SIGSTOP)
        time.sleep(_PAUSE_S)
        return _go_on(trial)

    return _repeat("sockets removed, and all sessions lost", fault, times, seed, "the daemon listens anew")


def without_arena(times: int, seed: int) -> Outcome:
    """The shared-memory directory is removed under a serving daemon, which is killed later."""

    def fault(trial: Stand, rng: random.Random) -> float:
        shutil.rmtree(trial.daemon.shm_dir)
        trial.hit_since(time.monotonic())  # whoever maps it goes on
        trial.daemon.kill()
        return _start(trial)

    return _repeat("arena removed, daemon killed and started again", fault, times, seed, "starts empty")


def short_of_memory(times: int, seed: int) -> Outcome:
    """The daemon may map nothing more: newcomers are refused, who is there is served."""

    def fault(trial: Stand, rng: random.Random) -> float:
        pid = trial.daemon.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (_mapped_bytes(pid), before[1]))
        newcomer = trial.crew.start()
        trial.hit_since(time.monotonic())
        resource.prlimit(pid, resource.RLIMIT_AS, before)
        since_s = time.monotonic()
        until(lambda: newcomer.ask("report").loaded, "the newcomer's first hit")
        trial.crew.count(newcomer.ask("report"))
        newcomer.end()
        return since_s

    note = "an engine that comes meanwhile attaches afterwards"
    return _repeat("daemon without memory to map (RLIMIT_AS)", fault, times, seed, note)


def _repeat(
    name: str, fault: Callable[[Stand, random.Random], float], times: int, seed: int, note: str = ""
) -> Outcome:
    rng = random.Random(seed)  # noqa: S311  a trial is replayed from its seed
    with stand(seed) as trial:
        trial.begin()
        for _ in range(times):
            time.sleep(rng.uniform(0.0, 0.1))  # the moment is the trial's input, nothing waits for it
            trial.recovered(fault(trial, rng))
        return trial.finish(name, note)


def _start(trial: Stand) -> float:
    """The daemon, again. Returns when that began."""
    since_s = time.monotonic()
    trial.daemon.start()
    return since_s


def _go_on(trial: Stand) -> float:
    since_s = time.monotonic()
    trial.daemon.signal(signal.SIGCONT)
    return since_s


def _mapped_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
