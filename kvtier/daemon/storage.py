"""The tier below DRAM, as the daemon handles it: made from the configuration, checked before anything serves,
told of namespaces, stopped within a bound. Without a storage directory there is the catalog alone, in which
engines find nothing.
"""

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kvtier import logs
from kvtier.config import Config
from kvtier.errors import ConfigError
from kvtier.format.seal import seal_name
from kvtier.format.storage import namespace_meta
from kvtier.io import lustre, native
from kvtier.io.secret_file import seal_key
from kvtier.io.shm import memfd, read_only
from kvtier.sizes import show_size

CHECK_S: Final = 10.0
"""How long a start waits for the root to answer."""
HEARTBEAT_S_MAX: Final = 2.0
STOP_S_MIN: Final = 1.0
"""However great the hurry: whether a thread hangs, or only has not ended yet, shows in that time."""


class StorageTier:
    """One daemon's. Not thread-safe, apart from what is read and the clears; those, `check` and `stop` wait,
    so run them aside."""

    def __init__(self, config: Config, store: native.Store, boot_id: int) -> None:
        """ConfigError when a field cannot be used."""
        self._config = config
        self._log = logs.get("storage")
        self._started = False
        self._noticed: dict[str, str] = {}  # "" for the tier, else a namespace's index: its last state
        self._seal_key = seal_key(config.storage_key)
        self._seal_name = seal_name(config.storage_seal, self._seal_key) if self._seal_key else ""
        self._chosen: dict[int, str] = {}  # a namespace's index: the codec that was found out last
        with contextlib.ExitStack() as undo:
            catalog_fd = memfd("kvtier-catalog")
            undo.callback(os.close, catalog_fd)
            self._tier = self._make(store, catalog_fd, boot_id)
            self.catalog_fd = read_only(catalog_fd)
            """What engines receive."""

    def _make(self, store: native.Store, catalog_fd: int, boot_id: int) -> native.Storage | None:
        if not self._config.storage:
            native.catalog_make_empty(catalog_fd, boot_id)
            return None
        root = self._config.storage
        files: object | None = None
        try:
            if "://" in root:
                from kvtier.io.objects import ObjectFiles  # their clients, only where one is wanted

                files, root = ObjectFiles(root), ""
            return native.Storage(
                store,
                root=root,
                files=files,
                catalog_fd=catalog_fd,
                host_id=secrets.token_bytes(16),
                boot_id=boot_id,
                options=options(self._config),
                seal=self._config.storage_seal,
                seal_key=self._seal_key,
            )
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            raise ConfigError(f"storage = {self._config.storage!r} cannot be used: {error}") from None

    @property
    def on(self) -> bool:
        """A storage directory is configured."""
        return self._tier is not None

    def check(self) -> None:
        """Read the root's marker, or make it. ConfigError, with the reason, when the root cannot be used."""
        if self._tier is None:
            return
        try:
            self._tier.check_root(CHECK_S)
        except (ValueError, OSError, RuntimeError) as error:
            raise ConfigError(f"storage = {self._config.storage!r} cannot be used: {error}") from None
        if "://" not in self._config.storage and (said := lustre.stripe(Path(self._config.storage))):
            self._log.info(said)

    def start(self) -> None:
        """Begin to demote, to promote and to look at other hosts' segments."""
        if self._tier is not None:
            self._started = True
            self._tier.start()
            segment = self._tier.stats()["storage_segment_bytes"]
            if segment < self._config.storage_segment:
                self._log.warning(
                    "storage_segment is more than a sixteenth of a quota: segments are smaller",
                    wanted=show_size(self._config.storage_segment),
                    used=show_size(segment),
                )

    def open_namespace(
        self, index: int, id: bytes, chunk_bytes: int, fingerprint_json: str, told: int = 0
    ) -> None:
        """Its directory is made in the background; one that holds another fingerprint is refused there.

        told: what an engine remembers of it from an earlier daemon.
        """
        if self._tier is not None:
            meta = namespace_meta(fingerprint_json, chunk_bytes, self._seal_name)
            self._tier.open_namespace(index, id, chunk_bytes, meta, self._config.storage_codec, told)

    def clear_namespace(self, index: int) -> None:
        """After the store's: never again readable here, from no host. Others go on with what they have.

        It takes time: run it aside.
        """
        if self._tier is not None:
            self._tier.clear_namespace(index)

    def clear_unopened(self, id: bytes) -> int:
        """Of one that is not open here: the epoch made for it on the root, 0 when that has nothing of it.

        It takes time: run it aside. ValueError: the root does not answer, or refuses.
        """
        return 0 if self._tier is None else self._tier.clear_unopened(id, CHECK_S)

    def stats(self) -> dict[str, int]:
        """Counters, names begin with storage_; none when off."""
        return {} if self._tier is None else self._tier.stats()

    def state(self) -> str:
        """In words: ok, or what is wrong with it; empty when off."""
        return "" if self._tier is None else self._tier.state()

    def namespaces(self) -> dict[int, dict[str, Any]]:
        """By index: how each stands on storage; none when off."""
        return {} if self._tier is None else {row["index"]: row for row in self._tier.namespaces()}

    def flush(self, wait_s: float) -> bool:
        """Wait until what was committed so far is written or dropped; False when the time was over first."""
        return self._tier is None or self._tier.flush(wait_s)

    def notice(self) -> None:
        """Once a second or so: a line in the log for whatever has changed since the last look."""
        namespaces = self.namespaces()
        self._notice_codecs(namespaces.values())
        states = {"": self.state()} | {str(ns): row["state"] for ns, row in namespaces.items()}
        for name, state in states.items():
            kind, colon, _ = state.partition(":")
            if kind == "opening" and colon:  # and why not: that one is not merely new
                kind = "unopened"
            before, self._noticed[name] = self._noticed.get(name, ""), kind
            if kind == before:
                continue
            if kind in ("refused", "unopened", "down", "failing", "full", "apart"):
                self._log.warning("storage", state=state, **({"namespace": name} if name else {}))
            elif before in ("unopened", "down", "failing", "full"):
                self._log.info("storage is back", was=before)

    def _notice_codecs(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            if row["codec_tried"] and self._chosen.get(row["index"]) != row["codec"]:
                self._chosen[row["index"]] = row["codec"]
                figures = {name: round(row[f"codec_{name}"], 3) for name in ("share", "write", "read")}
                self._log.info(
                    "codec", namespace=row["index"], codec=row["codec"], tried=row["codec_tried"], **figures
                )

    def stop(self, wait_s: float) -> bool:
        """Write what is queued and leave, within `wait_s` (STOP_S_MIN at least).

        False: a thread was left behind in a medium that hangs, and may still read into the arena.
        """
        wait_s = max(wait_s, STOP_S_MIN)
        ended = self._tier is None or self._tier.stop(wait_s)
        if not ended and self._started:
            self._log.warning("storage did not stop in time; what was queued is not on it", wait_s=wait_s)
        os.close(self.catalog_fd)
        return ended


def options(config: Config) -> dict[str, int | float]:
    """The fields of StorageOptions that the configuration sets; the others keep their defaults."""

    def ms(seconds: float) -> int:
        return round(seconds * 1000)

    return {
        "quota_bytes": config.storage_quota,
        "namespace_quota_bytes": config.storage_namespace_quota,
        "segment_bytes": config.storage_segment,
        "poll_ms": ms(config.storage_poll),
        "heartbeat_ms": ms(min(config.storage_poll, HEARTBEAT_S_MAX)),
        "dead_after_ms": ms(config.storage_dead_after),
        "load_threads": config.storage_threads,
        "store_threads": max(2, config.storage_threads // 2),
    }
