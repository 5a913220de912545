"""`Keeper`: holds the attachment of one client, notices its end, and attaches again for a managed client.

Threads. The keeper has one background thread. It alone sets `_attachment` once `start` has returned; callers
read it without a lock (one attribute, replaced whole). While attached, the thread sleeps on the session's
connection and an alarm; it wakes for three things: the daemon is gone (end of file), a call ran into its
deadline (`report_lost`), the client is closed. While not attached it tries, and pauses between attempts.

A forked child has none of its parent's threads and may not use its ring. `_forget_parent` runs in the child
of every os.fork(): it closes the inherited connection, so that the parent's end is still seen as end of file,
and the next call starts the child's own thread (managed) or raises (plain). The native session catches forks
that Python does not see.
"""

import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from kvtier.address import default_address, parse_address
from kvtier.client.alarm import Alarm
from kvtier.client.attach import Attachment, attach
from kvtier.client.backoff import Backoff
from kvtier.client.channel import ControlChannel
from kvtier.client.devices import Device, native_backend
from kvtier.client.namespace import Namespace
from kvtier.client.values import SlotLease
from kvtier.client.writes import OpenWrites
from kvtier.errors import (
    DaemonUnavailable,
    InvalidArgument,
    KVTierError,
    LeaseExpired,
    NamespaceMismatch,
)
from kvtier.format.fingerprint import canonical_json, namespace_id
from kvtier.io import native
from kvtier.types import FormerSession

_log = logging.getLogger("kvtier.client")
_CLOSE_JOIN_S = 1.0


class Keeper:
    """See the file's head. Every method is thread-safe."""

    def __init__(
        self, address: str | None, *, name: str, group: str, managed: bool, deadline_ms: int, timeout_s: float
    ) -> None:
        self.address = str(parse_address(default_address() if address is None else address))
        self._name = name
        self._group = group
        self._managed = managed
        self._deadline_ms = deadline_ms
        self._timeout_s = timeout_s
        # Of a control call that a caller waits for: an engine's thread waits no longer there than elsewhere.
        self._call_s = deadline_ms / 1000 if managed else timeout_s
        self._control_only = not self.address.startswith("unix:")
        self._namespaces: dict[bytes, Namespace] = {}
        self._callbacks: list[Callable[[int], None]] = []
        self._attaches = 0
        self._losses = 0
        self._closed = False
        self._why = f"not attached to {self.address} yet"
        self._fresh()
        _keepers.add(self)

    def _fresh(self) -> None:
        """What belongs to one process: made at first and again in a forked child."""
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards _namespaces, _callbacks, _attachment's replacement
        self._attachment: Attachment | None = None
        self._control: ControlChannel | None = None
        self._thread: threading.Thread | None = None
        self._alarm = Alarm()
        self._writes = OpenWrites()
        self._former: FormerSession | None = None
        self._copies = False  # a copy engine was made; those of lost sessions may still be writing
        # Ours alone when the caller named none. What one session held may be over in the next one's time.
        self._session_group = self._group or f"process {self._pid} {secrets.token_hex(8)}"

    # ---- life ----

    def start(self) -> None:
        """Attach. A plain client raises when that fails; a managed one goes on trying in the background."""
        if self._control_only:
            self._why = f"address is '{self.address}', for control calls only; shared memory needs unix:/path"
            if self._managed:
                raise InvalidArgument(self._why)
            self.control().daemon_stats()  # a wrong address is to be found out here
            return
        try:
            self._attach_once()
        except Exception as error:  # an engine must start, whatever is wrong with its cache
            if not self._managed:
                self.close()
                raise
            self._why = str(error)
            then = "going on without cache, attaching in the background"
            _log.warning("kvtier: %s: %s; %s", self._name, error, then)
        self._start_thread()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kvtier-session", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the session orderly. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._why = "the client is closed"
        if os.getpid() != self._pid:
            return
        self._alarm.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_JOIN_S + self._timeout_s)
        with self._lock:
            attachment, self._attachment = self._attachment, None
            control, self._control = self._control, None
        if attachment is not None:
            attachment.close()
        if control is not None:
            control.close()

    # ---- what callers ask ----

    @property
    def attachment(self) -> Attachment | None:
        """The present one, or None when there is none or it is lost."""
        attachment = self._attachment
        return None if attachment is None or attachment.session.lost else attachment

    @property
    def connected(self) -> bool:
        """Attached, and the daemon not known to be gone."""
        return self.attachment is not None

    @property
    def boot_id(self) -> int:
        """Of the present attachment; 0 when there is none."""
        attachment = self._attachment
        return 0 if attachment is None else attachment.boot_id

    @property
    def attachments(self) -> int:
        """How often this client has attached."""
        return self._attaches

    def counters(self) -> dict[str, int]:
        """Of this process."""
        attachment = self._attachment
        own = {"attachments": self._attaches, "losses": self._losses}
        return own if attachment is None else own | attachment.session.counters()

    def on_attach(self, callback: Callable[[int], None]) -> None:
        """See `Client.on_attach`."""
        with self._lock:
            self._callbacks.append(callback)
            attachment = self._attachment
        if attachment is not None:
            _call(callback, attachment.boot_id)

    def control(self) -> ControlChannel:
        """The control channel of this process."""
        with self._lock:
            if self._closed:
                raise DaemonUnavailable(self._why)
            if self._control is None:
                self._control = ControlChannel(self.address, timeout_s=self._call_s)
            return self._control

    def clear_namespace(self, id: bytes) -> int:
        """See `Namespace.clear`. A daemon that does not answer in time is lost to a managed client."""
        attachment = self.attachment
        if self._managed and attachment is None:
            raise self._unavailable()
        try:
            return self.control().clear_namespace(id)
        except DaemonUnavailable as error:
            if self._managed and attachment is not None:
                self.report_lost(attachment, str(error))
            raise

    def open_namespace(self, fingerprint: Mapping[str, Any], chunk_bytes: int, label: str = "") -> Namespace:
        """See `Client.namespace`."""
        text = canonical_json(fingerprint)
        id = namespace_id(text)
        if type(chunk_bytes) is not int or chunk_bytes <= 0:
            raise InvalidArgument(f"chunk_bytes: {chunk_bytes!r}; a positive integer is wanted")
        with self._lock:
            known = self._namespaces.get(id)
        if known is not None and known.chunk_bytes != chunk_bytes:
            raise NamespaceMismatch(
                f"namespace {id.hex()}: chunk_bytes is {known.chunk_bytes}, not {chunk_bytes}"
            )
        ns = known or Namespace(self, id, text, chunk_bytes, label)
        attachment = self.attachment
        if self._control_only:
            self.control().open_namespace(text, chunk_bytes, label)
        elif attachment is not None and id not in attachment.indexes:
            try:
                attachment.open_namespace(self.control(), ns)
            except DaemonUnavailable as error:
                if not self._managed:
                    raise
                self.report_lost(attachment, str(error))  # the next attach opens it
        elif attachment is None and not self._managed:
            raise self._unavailable()
        with self._lock:
            ns = self._namespaces.setdefault(id, ns)
            newer = self._attachment
        if newer is not None and newer is not attachment and id not in newer.indexes:
            newer.open_namespace(self.control(), ns)  # attached between the two looks
        return ns

    def copy_engine(self, threads: int, load_deadline_ms: int, device: Device) -> native.CopyEngine:
        """See `Client.copy_engine`."""
        attachment = self.attachment
        if attachment is None:
            raise self._unavailable()
        backend = native_backend(device)
        self._copies = attachment.copies = True
        return native.CopyEngine(
            attachment.session, threads=threads, ready_deadline_ms=load_deadline_ms, backend=backend
        )

    def bound(self, id: bytes) -> tuple[Attachment, int]:
        """The present attachment and the namespace's index in it; raises when there is none."""
        attachment = self.attachment
        if attachment is None:
            raise self._unavailable()
        index = attachment.indexes.get(id)
        if index is None:
            raise attachment.refused.get(id) or DaemonUnavailable(f"namespace {id.hex()} is not open yet")
        return attachment, index

    def attachment_of(self, lease: SlotLease) -> Attachment | None:
        """The attachment that a lease was taken in, unless that has ended."""
        attachment = self.attachment
        return attachment if attachment is not None and attachment.number == lease.attachment else None

    def may_write(self, attachment: Attachment, lease: int) -> bool:
        """A write lease was granted; False: too late, the session has ended and the daemon takes it back."""
        return self._writes.add(attachment.number, lease)

    def done_writing(self, lease: SlotLease) -> None:
        """The caller of this lease, and whoever copied under it, writes into its slots no more."""
        if self._writes.done(lease):
            self._tell_late()

    def _tell_late(self) -> None:
        """Tell the daemon which leases of lost sessions are over by now: it keeps their slots so long."""
        attachment = self.attachment
        if attachment is None:
            return
        for lease in self._writes.take_late(attachment.arena_id):
            with suppress(DaemonUnavailable), self.translate(attachment):
                attachment.session.abort(lease)

    @contextmanager
    def translate(self, attachment: Attachment, lease: int = 0) -> Iterator[None]:
        """Turns what the native session raises into our errors, and notes a lost daemon."""
        try:
            yield
        except native.DaemonLost as error:
            self.report_lost(attachment, str(error))
            raise DaemonUnavailable(f"{self.address}: {error}") from None
        except ValueError as error:
            if lease:
                raise LeaseExpired(f"lease {lease}: {error}") from None
            raise InvalidArgument(str(error)) from None
        except TypeError as error:
            raise InvalidArgument(str(error)) from None

    def report_lost(self, attachment: Attachment, why: str) -> None:
        """A call found the daemon gone: the background thread ends this attachment."""
        attachment.session.mark_lost()
        self._why = f"the daemon at {self.address} is gone ({why})"
        self._alarm.ring()

    def nudge(self) -> None:
        """In a forked child of a managed client: start over. Else nothing."""
        if self._thread is None and self._managed and not self._closed and not self._control_only:
            with self._lock:
                if self._thread is None:
                    self._start_thread()

    def _unavailable(self) -> KVTierError:
        self.nudge()
        if self._control_only:
            return InvalidArgument(self._why)
        return DaemonUnavailable(self._why)

    # ---- the background thread ----

    def _run(self) -> None:
        backoff = Backoff()
        while not self._closed:
            attachment = self._attachment
            if attachment is not None:
                self._watch(attachment)
                if not self._closed:
                    self._lose(attachment)
                continue
            if not self._managed:
                return
            try:
                self._attach_once()
                backoff.reset()
            except KVTierError as error:
                self._why = str(error)
                self._alarm.sleep(backoff.next_s())
            except Exception:  # the thread must live: without it nobody would attach again
                _log.exception("kvtier: attaching to %s failed", self.address)
                self._alarm.sleep(backoff.next_s())

    def _attach_once(self) -> None:
        with ExitStack() as undo:
            control = undo.enter_context(ControlChannel(self.address, timeout_s=self._timeout_s))
            with self._lock:
                wanted = list(self._namespaces.values())
            attachment = attach(
                control,
                number=self._attaches + 1,
                name=self._name,
                group=self._session_group,
                deadline_ms=self._deadline_ms,
                timeout_s=self._timeout_s,
                namespaces=wanted,
                former=self._former,
            )
            undo.pop_all()
        self._former, attachment.copies = None, self._copies
        control.timeout_s = self._call_s  # it goes on as the callers' channel: no call pays for a connection
        _log.info("kvtier: %s attached to %s (boot %016x)", self._name, self.address, attachment.boot_id)
        for id, error in attachment.refused.items():
            _log.error("kvtier: namespace %s: %s", id.hex(), error)
        with self._lock:
            self._attaches += 1
            self._attachment = attachment
            former, self._control = self._control, control
            callbacks = list(self._callbacks)
        if former is not None:
            former.close()
        self._tell_late()
        for callback in callbacks:
            _call(callback, attachment.boot_id)

    def _watch(self, attachment: Attachment) -> None:
        """Returns when the attachment has ended, or the client is to close."""
        while not self._closed and not attachment.session.lost:
            if self._alarm.until_end(attachment.connection):
                self.report_lost(attachment, "its connection ended")

    def _lose(self, attachment: Attachment) -> None:
        with self._lock:
            self._attachment = None
            control, self._control = self._control, None
            self._losses += 1
            attachment.remember(self._namespaces.values())
        if control is not None:
            control.close()
        self._former = attachment.abandon(self._writes.end(attachment.number, attachment.arena_id))
        then = "; going on without cache, attaching again in the background" if self._managed else ""
        _log.warning("kvtier: %s: %s%s", self._name, self._why, then)

    # ---- fork ----

    def _forget_parent(self) -> None:
        parent = self._pid
        inherited = self._attachment
        self._alarm.drop_inherited()
        self._fresh()
        self._why = f"the client belongs to process {parent}; connect anew in a forked child"
        if inherited is not None:
            inherited.session.mark_lost()
            inherited.connection.close()


def _call(callback: Callable[[int], None], boot_id: int) -> None:
    try:
        callback(boot_id)
    except Exception:  # a callback's fault must not end the session
        _log.exception("kvtier: an on_attach callback failed")


_keepers: "weakref.WeakSet[Keeper]" = weakref.WeakSet()


def _forget_parents() -> None:
    for keeper in list(_keepers):
        keeper._forget_parent()


os.register_at_fork(after_in_child=_forget_parents)
