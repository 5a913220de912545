"""Sessions of an earlier daemon whose processes may still be writing into its slots.

The store keeps those slots in quarantine. It ends for a session

  when its process is proven gone: a pidfd of the pid and start time that were written down for it
  when the process has attached to this daemon and said what it still holds of that session
  after a long grace, where neither can be: the pid is one of another PID namespace
"""

import errno
import os
from typing import Any

from kvtier import logs
from kvtier.daemon.deaths import Deaths
from kvtier.io.native import Store
from kvtier.io.process import pid_space, start_ticks
from kvtier.types import FormerSession


class Survivors:
    """Runs on the daemon's event loop."""

    def __init__(self, store: Store, deaths: Deaths) -> None:
        self._store = store
        self._deaths = deaths
        self._log = logs.get("sessions")
        self._rows: dict[int, dict[str, Any]] = {}

    def start(self) -> None:
        """Find out which of them live, and watch those."""
        space = pid_space()
        for row in self._store.restored_sessions():
            if not row["pid"] or not space or row["space"] != space:
                self._keep(row, None)  # nothing proves its end
                continue
            try:
                pidfd = _pidfd_of(row["pid"], row["start"])
            except (OSError, OverflowError):  # no descriptor left, or a number that no process has
                self._keep(row, None)
                continue
            if pidfd is None:
                self._store.close_session(row["session"], True)
            else:
                self._keep(row, pidfd)

    def heard(self, former: FormerSession, group: int) -> None:
        """A process that has attached says what it still holds of a session of an earlier daemon."""
        row = self._rows.get(former.session)
        if row is None or row["boot_id"] != former.boot_id or row["group"] != group:
            return
        drained = not former.held and not former.copies
        self._store.close_session(former.session, drained, list(former.held))
        if drained:
            self._deaths.forget(former.session)
            del self._rows[former.session]

    def _keep(self, row: dict[str, Any], pidfd: int | None) -> None:
        self._rows[row["session"]] = row
        self._deaths.watch(row["session"], pidfd)
        self._log.info(
            "a process of before may still be writing",
            session=row["session"],
            pid=row["pid"],
            watched=pidfd is not None,
        )


def _pidfd_of(pid: int, start: int) -> int | None:
    """Of the process that had this pid and start time; None when it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        # The latter two: the number is that of another process's thread by now.
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
            return None
        raise
    # Read after the pidfd was opened: the same start time, so the same process.
    if start and start_ticks(pid) not in (0, start):
        os.close(pidfd)
        return None
    return pidfd
