"""`Client`: one process's access to the daemon of its host."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kvtier.client.devices import Device, HostDevice
from kvtier.client.namespace import Namespace
from kvtier.client.session import Keeper

if TYPE_CHECKING:
    from kvtier.io.native import CopyEngine


class Client:
    """Thread-safe. Every call is bounded by a deadline and raises only `KVTierError`s.

    Plain (`managed=False`, for tools): `connect` raises when no daemon answers; when the daemon is lost
    later, the calls raise `DaemonUnavailable`.

    Managed (for adapters): `connect` never raises for an absent daemon. A background thread attaches, and
    attaches again after a loss, with growing pauses; it opens the namespaces anew and then calls the
    `on_attach` callbacks. Meanwhile `lookup` says 0 and the other calls raise `DaemonUnavailable` at once.

    After a fork the child may not use its parent's session: a plain client raises `DaemonUnavailable`, a
    managed one attaches anew by itself.
    """

    def __init__(self, keeper: Keeper) -> None:
        """Use `Client.connect`."""
        self._keeper = keeper

    @classmethod
    def connect(
        cls,
        address: str | None = None,
        *,
        name: str = "python",
        group: str = "",
        managed: bool = False,
        deadline_ms: int = 50,
        timeout_s: float = 2.0,
    ) -> Self:
        """Attach to the daemon at `address`: `unix:/path`, or `host:port` for control calls only.

        address      None: KVTIER_ADDRESS, else the default socket
        name         shown by `kvtier stats`: engine and role, e.g. "vllm/scheduler"
        group        the processes of one engine name the same group, its engine id; empty: its own group
        managed      see the class
        deadline_ms  longest wait of one call over shared memory; after one such wait the session is lost
        timeout_s    longest wait of this call and of control calls

        Raises DaemonUnavailable (not when managed), ProtocolMismatch, InvalidArgument (a malformed address).
        """
        keeper = Keeper(
            address, name=name, group=group, managed=managed, deadline_ms=deadline_ms, timeout_s=timeout_s
        )
        keeper.start()
        return cls(keeper)

    # ---- state ----

    @property
    def address(self) -> str:
        """The daemon's address, as resolved."""
        return self._keeper.address

    @property
    def connected(self) -> bool:
        """Attached to a daemon that is not known to be gone."""
        return self._keeper.connected

    @property
    def boot_id(self) -> int:
        """Random id of the daemon process we are attached to; 0 while not attached."""
        return self._keeper.boot_id

    @property
    def attachment(self) -> int:
        """How often this client has attached: 1 for the first time, raised at every further one."""
        return self._keeper.attachments

    def on_attach(self, callback: Callable[[int], None]) -> None:
        """Have `callback(boot_id)` called at every attach, once each; at once when already attached.

        It runs in the background thread (the first time perhaps in the caller's), after the namespaces were
        opened. What it raises is logged and dropped.
        """
        self._keeper.on_attach(callback)

    def counters(self) -> dict[str, int]:
        """Counters of this process: attachments, losses, and those of the shared-memory session."""
        return self._keeper.counters()

    # ---- work ----

    def namespace(self, fingerprint: Mapping[str, Any], chunk_bytes: int, *, label: str = "") -> Namespace:
        """The namespace of `fingerprint`: all that changes bytes. Same on any host.

        label: what `kvtier stats` shows for it; changes nothing else.

        A managed client that is not attached opens it at the next attach. Raises InvalidArgument (a value
        that has no canonical form), NamespaceMismatch (known with another chunk size, or another fingerprint
        of the same id), DaemonUnavailable (plain client).
        """
        return self._keeper.open_namespace(fingerprint, chunk_bytes, label)

    def copy_engine(
        self, threads: int = 0, *, load_deadline_ms: int = 10_000, device: Device | None = None
    ) -> "CopyEngine":
        """A native copy engine on the arena of the present attachment; 0 threads: half the cores, 1 to 4.

        device: where the engine's tensors are; None: plain memory of this process.

        A load waits `load_deadline_ms` at most for chunks on their way from storage, which are lost then.

        It stays usable (its mapping lives on) when the daemon is lost, but serves that arena only: make
        another in `on_attach`. Raises DaemonUnavailable while not attached, InvalidArgument when the device
        cannot be had.
        """
        return self._keeper.copy_engine(threads, load_deadline_ms, device or HostDevice())

    def stats(self) -> dict[str, Any]:
        """The daemon's statistics, as `kvtier stats --json` prints them."""
        return self._keeper.control().stats()

    def close(self) -> None:
        """Give everything back and end the session. Idempotent. No lease is valid after it."""
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
