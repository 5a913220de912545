"""One daemon's life: start, serve, drain, stop. The one place that wires concrete things together.

Start   address claimed -> arena files, kept or made anew -> store -> storage -> sessions -> gRPC -> HTTP
        -> ready
Stop    no new leases -> wait for those out, bounded -> gRPC and sessions end -> storage -> store. The arena
        stays for the next daemon

A signal (SIGTERM, SIGINT, SIGHUP) begins the stop; a second one skips the waiting.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry

from kvtier import logs
from kvtier.address import parse_address, parse_host_port
from kvtier.clock import Clock, MonotonicClock
from kvtier.config import Config
from kvtier.daemon import arena, service, watches
from kvtier.daemon.control_port import ControlPort
from kvtier.daemon.floors import FloorKeeper
from kvtier.daemon.health import Health
from kvtier.daemon.limits import check_free, check_machine
from kvtier.daemon.listen import Claim
from kvtier.daemon.namespaces import Namespaces
from kvtier.daemon.notify import notify
from kvtier.daemon.sessions import Sessions, SharedFds
from kvtier.daemon.storage import StorageTier
from kvtier.errors import ConfigError, InvalidArgument, KVTierError
from kvtier.floors import Floors
from kvtier.io.native import Store
from kvtier.io.process import host_boot
from kvtier.io.shm import ArenaFiles, memfd
from kvtier.io.tls import read_tls
from kvtier.metrics import POPULATION_FAILED, StatsCollector
from kvtier.sizes import show_size
from kvtier.types import DaemonStats
from kvtier.version import VERSION

DRAIN_POLL_S: Final = 0.02
ROOM_POLL_S: Final = 0.005
SOCKETS_LOOK_S: Final = 0.5


class Daemon:
    """Built from a checked configuration; `run` returns when it has stopped."""

    def __init__(self, config: Config, clock: Clock | None = None, *, fresh: bool = False) -> None:
        """fresh: start with an empty arena, whatever an earlier daemon has left."""
        self._config = config
        self._fresh = fresh
        # Where the kernel does not name its boot, no later daemon can know that it is the same one.
        self._host_boot = host_boot() or secrets.token_bytes(16)
        self._clock = clock or MonotonicClock()
        self._log = logs.get("daemon")
        self._boot_id = secrets.randbits(64) | 1
        self._started_s = self._clock.now_s()
        self._draining = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, on_ready: Callable[["Daemon"], None] = lambda _: None) -> None:
        """Serve until a signal or `request_stop`. Raises ConfigError or AlreadyServing at start."""
        os.umask(0o077)
        check_machine(self._config)
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            self._watch_signals(stack)
            notify("READY=1")
            on_ready(self)
            await self._stop.wait()
            notify("STOPPING=1")
            left = await self.drain(self._config.drain_timeout)
            self._log.info("stopping", leases_left=left)
        self._log.info("stopped")

    def request_stop(self) -> None:
        """Begin the stop; the second call skips the waiting."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def drain(self, deadline_s: float) -> int:
        """No new leases; wait until none is out or the deadline has passed. Leases that are left."""
        self._log.info("draining", deadline_s=deadline_s)
        self._draining = True
        self._store.set_draining(True)
        self._sessions.refuse_new()
        await self._control.set_not_serving()
        deadline_s += self._clock.now_s()
        while (left := self._leases()) and self._clock.now_s() < deadline_s and not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), DRAIN_POLL_S)
        return left

    def stats(self) -> DaemonStats:
        """Everything that `kvtier stats` shows."""
        return DaemonStats(
            boot_id=self._boot_id,
            version=VERSION,
            uptime_s=self._clock.now_s() - self._started_s,
            counters=self._counters(),
            namespaces=self._namespaces.list(),
            sessions=self._sessions.list(),
            storage=self._storage.state(),
        )

    @property
    def http_port(self) -> int | None:
        """The port that was bound, or None when HTTP is off."""
        return self._http.port if self._http else None

    # ---- start ----

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        config = self._config
        tls = read_tls(config.tls_cert, config.tls_key, config.tls_ca)
        claim = Claim(parse_address(config.address), config.access_group)
        stack.callback(claim.release)
        self._files = files = ArenaFiles(config.shm_dir)
        stack.callback(arena.leave, config, files)
        reason = "--fresh was given" if self._fresh else arena.why_not_kept(config, files, self._host_boot)
        # Before anything is removed: a start that fails leaves what it has found. What is not kept is freed.
        if warning := check_free(config, files.found_bytes):
            self._log.warning(warning)
        if reason:
            if files.found_bytes:
                self._log.warning("starting empty", reason=reason, bytes=files.found_bytes)
            files.make_anew()
        doorbell_fd = memfd("kvtier-doorbell")
        stack.callback(os.close, doorbell_fd)

        self._store = self._make_store(files, doorbell_fd, keep=not reason)
        stack.callback(self._store.stop)
        if not reason:
            self._log_restart()
        self._storage = StorageTier(config, self._store, self._boot_id)
        stack.push_async_callback(self._stop_storage)
        await asyncio.to_thread(self._storage.check)
        self._store.start()
        self._storage.start()
        floors = Floors(config.floor, config.floors)
        self._floors = FloorKeeper(self._store, floors, self._clock, config.floor_idle)
        self._namespaces = Namespaces(self._store, self._boot_id, storage=self._storage, floors=self._floors)
        self._sessions = Sessions(
            self._store,
            self._clock,
            boot_id=self._boot_id,
            socket_path=claim.session_path,
            access=claim.access,
            shared_fds=SharedFds(
                files.data_fd, files.meta_read_only_fd, doorbell_fd, self._storage.catalog_fd
            ),
        )
        stack.push_async_callback(self._sessions.stop)
        self._sessions.start()
        await self._await_room()
        self._control = ControlPort(claim, self._make_service(), tls)
        stack.push_async_callback(self._control.stop)
        await self._control.listen()
        claim.note()
        self._http = self._start_http(stack)
        for name, watch in (
            ("population", lambda: watches.population(self._store, config.dram)),
            ("storage", lambda: watches.storage(self._storage)),
            ("sockets", lambda: self._watch_sockets(claim)),
            ("floors", lambda: watches.floors(self._floors)),
            ("damage", lambda: arena.watch_damage(self._store)),
        ):
            stack.callback(asyncio.create_task(watches.kept(name, watch)).cancel)
        files.settle()
        self._log.info(
            "serving",
            address=str(claim.address),
            dram=show_size(config.dram),
            policy=config.policy,
            shm_dir=str(config.shm_dir),
            pid=os.getpid(),
            boot_id=f"{self._boot_id:016x}",
            http_port=self.http_port,
            **({"storage": config.storage} if self._storage.on else {}),
        )

    async def _stop_storage(self) -> None:
        """Before the store, which its threads use; a second signal skips the waiting."""
        in_order = self._stop.is_set() and not self._hurry.is_set()
        wait_s = self._config.drain_timeout if in_order else 0.0
        if not await asyncio.to_thread(self._storage.stop, wait_s):
            self._files.hold_to_the_end()

    def _log_restart(self) -> None:
        stats = self._store.stats()
        names = ("kept", "quarantined", "late", "unfinished", "cleared", "damaged")
        self._log.info(
            "kept the arena of an earlier daemon",
            restarts=stats["restarts"],
            seconds=stats["restart_us"] / 1e6,
            **{name: stats[f"restart_{name}"] for name in names},
        )

    def _make_store(self, files: ArenaFiles, doorbell_fd: int, *, keep: bool) -> Store:
        config = self._config
        try:
            return Store(
                data_fd=files.data_fd,
                meta_fd=files.meta_fd,
                doorbell_fd=doorbell_fd,
                dram_bytes=config.dram,
                slab_bytes=config.slab,
                slots_max=config.slots_max,
                policy=config.policy,
                boot_id=self._boot_id,
                lease_ms=round(config.lease_timeout * 1000),
                host_boot=self._host_boot,
                keep=keep,
                checksum=config.dram_checksum,
            )
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            raise ConfigError(f"the arena cannot be made: {error}") from None

    def _make_service(self) -> service.Service:
        return service.Service(
            self._store,
            self._sessions,
            self._namespaces,
            stats=self.stats,
            drain=self.drain,
            flush=self.flush,
        )

    def _start_http(self, stack: contextlib.AsyncExitStack) -> Health | None:
        if self._config.http == "off":
            return None
        host, port = parse_host_port(self._config.http, "http")
        registry = CollectorRegistry()
        registry.register(StatsCollector(self._counters))
        http = Health(host, port, registry, self._readiness)
        http.start()
        stack.callback(http.stop)
        return http

    # ---- while serving ----

    def _watch_signals(self, stack: contextlib.AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:  # started by nohup: it stays ignored
                continue
            loop.add_signal_handler(number, self.request_stop)
            stack.callback(loop.remove_signal_handler, number)

    async def _await_room(self) -> None:
        """Until the first slab is populated: an engine's first reserve finds room, also on a busy host."""
        slab_bytes = self._store.stats()["slab_bytes"]
        while self._store.population_error() is None and not self._stop.is_set():
            if self._store.populated_bytes() >= slab_bytes:
                return
            await asyncio.sleep(ROOM_POLL_S)

    async def _watch_sockets(self, claim: Claim) -> None:
        """Somebody removes the sockets: engines that are attached do not notice, others would find nobody."""
        said = ""
        while True:
            await asyncio.sleep(SOCKETS_LOOK_S)
            if self._draining or not claim.lost():
                continue
            try:
                claim.renew()
                self._sessions.listen()
                await self._control.listen_anew()
                claim.note()
            except (KVTierError, OSError) as error:
                if said != (said := str(error)):
                    self._log.error("the sockets are gone, and cannot be made anew", error=said)
            else:
                said = ""
                self._log.warning("the sockets had been removed: listening anew", address=str(claim.address))

    async def flush(self, deadline_s: float) -> bool:
        """Wait until what was committed so far is on storage or dropped; False: not in time."""
        return await asyncio.to_thread(self._storage.flush, deadline_s)

    def _counters(self) -> dict[str, int]:
        own = {POPULATION_FAILED: int(self._store.population_error() is not None)}
        return self._store.stats() | self._storage.stats() | own

    def _readiness(self) -> tuple[bool, str]:
        """Whether it can serve, and a word for whoever looks. A part of the arena is better than none."""
        if self._draining:
            return False, "draining"
        state = self._storage.state()
        storage = "" if state in ("", "ok") else f"; storage is {state}"
        error = self._store.population_error()
        if error is None:
            return True, f"ok{storage}"
        usable = self._store.populated_bytes() >= self._store.stats()["slab_bytes"]
        return usable, f"{'ok, but not whole' if usable else 'no memory'}: {error}{storage}"

    def _leases(self) -> int:
        return sum(info.read_leases + info.write_leases for info in self._sessions.list())


def serve(
    config: Config, on_ready: Callable[[Daemon], None] = lambda _: None, *, fresh: bool = False
) -> None:
    """Run one daemon in this process until it is told to stop. fresh: see `Daemon`."""

    async def main() -> None:
        await Daemon(config, fresh=fresh).run(on_ready)

    try:
        asyncio.run(main())
    except InvalidArgument as error:
        raise error if isinstance(error, ConfigError) else ConfigError(str(error)) from None
