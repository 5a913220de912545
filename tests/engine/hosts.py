"""One kvtier daemon as these tests use it: it can be killed and started again, and asked what is left."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from engines import Engine, wait_until

from kvtier import Client, DaemonUnavailable
from kvtier.client.channel import ControlChannel

SIGN_BITS = np.uint32(0x8000_0000)


class Host:
    """A daemon with an arena of its own. Leaving the context stops it in order and removes the arena."""

    def __init__(self, directory: Path, dram: str = "256MiB") -> None:
        # A socket's path may have 107 bytes; pytest's directories are longer.
        self._run = Path(tempfile.mkdtemp(prefix="kvtier-test-"))
        self._shm = Path(tempfile.mkdtemp(prefix="kvtier-test-", dir="/dev/shm"))
        self._log = directory / "daemon.log"
        self._dram = dram
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"unix:{self._run}/kvtier.sock"

    # ---- its life ----

    def start(self) -> Self:
        command = [sys.executable, "-m", "kvtier.cli.main", "serve", "--address", self.address]
        command += ["--dram", self._dram, "--shm-dir", str(self._shm)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KVTIER_")}
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                command, env=environ, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL
            )
        wait_until(self._answers, "the daemon is up")
        return self

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def stop(self) -> None:
        """SIGTERM; it must end by itself."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            assert self._process.wait(20) == 0, self.log_text()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the daemon ended: {self.log_text()}"
        try:
            self.stats()
        except DaemonUnavailable:
            return False
        return True

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        try:
            self.stop()
        finally:
            self.kill()
            shutil.rmtree(self._shm, ignore_errors=True)
            shutil.rmtree(self._run, ignore_errors=True)

    # ---- what it says ----

    def stats(self) -> dict[str, Any]:
        with ControlChannel(self.address, timeout_s=10.0) as control:
            return control.stats()

    def sessions(self) -> int:
        return len(self.stats()["sessions"])

    def chunks(self) -> int:
        """Readable chunks, of all namespaces."""
        return sum(namespace["chunks"] for namespace in self.stats()["namespaces"])

    def stored_bytes(self) -> int:
        """Bytes of all chunks committed in this life of the daemon."""
        return sum(namespace["stores"] * namespace["chunk_bytes"] for namespace in self.stats()["namespaces"])

    def leftovers(self) -> dict[str, int]:
        """What sessions, dead ones included, still hold; empty when nothing is held."""
        kinds = ("read_leases", "write_leases", "pinned_slots", "reserved_slots")
        sessions = self.stats()["sessions"]
        held = {kind: sum(session[kind] for session in sessions) for kind in kinds}
        return {kind: count for kind, count in held.items() if count}

    def settle(self, *engines: Engine) -> None:
        """Wait until these engines hold nothing: stores committed, leases given back."""
        for engine in engines:
            engine.poke()
        self.wait_for(lambda: not self.leftovers(), "all leases are back", *engines)

    def wait_for(self, condition: Callable[[], bool], what: str, *engines: Engine) -> None:
        """Wait, and step the engines meanwhile: an engine in process does nothing by itself."""

        def poke() -> None:
            for engine in engines:
                engine.poke()

        wait_until(condition, f"{what}; held: {self.leftovers()}", **({"between": poke} if engines else {}))

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not self.leftovers(), f"nothing is held: {self.leftovers()}")

    # ---- what no daemon would do ----

    def spoil_every_chunk(self) -> int:
        """Turn the sign of every float of every readable chunk, as any client could. Returns how many."""
        spoiled = 0
        with ControlChannel(self.address) as control, Client.connect(self.address) as client:
            for record in self.stats()["namespaces"]:
                namespace = client.namespace(record["fingerprint"], record["chunk_bytes"])
                for chunk in control.list_chunks(namespace.id):
                    lease = namespace.lease_slots([chunk.key])
                    with namespace.slot_view(lease, 0, writable=True) as view:
                        np.frombuffer(view, np.uint32)[:] ^= SIGN_BITS
                    namespace.release_slots(lease)
                    spoiled += len(lease)
        return spoiled
