"""Processes of an earlier daemon's sessions: gone, alive, or not to be told."""

import os
import threading
from typing import Any, cast

import pytest

from kvtier.daemon.survivors import Survivors
from kvtier.io.process import pid_space, start_ticks


class Told:
    """Stands for the store and for the deaths; remembers what it was told."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.closed: list[int] = []
        self.watched: list[bool] = []

    def restored_sessions(self) -> list[dict[str, Any]]:
        return [self.row]

    def close_session(self, session: int, drained: bool) -> None:
        self.closed.append(session)

    def watch(self, session: int, pidfd: int | None) -> None:
        self.watched.append(pidfd is not None)
        if pidfd is not None:
            os.close(pidfd)


def started(pid: int, start: int) -> Told:
    told = Told({"session": 7, "boot_id": 1, "group": 2, "pid": pid, "start": start, "space": pid_space()})
    Survivors(cast(Any, told), cast(Any, told)).start()
    return told


def test_a_living_process_is_watched():
    told = started(os.getpid(), start_ticks(os.getpid()))
    assert (told.closed, told.watched) == ([], [True])


def test_another_start_time_is_another_process():
    told = started(os.getpid(), start_ticks(os.getpid()) + 1)
    assert (told.closed, told.watched) == ([7], [])


def test_a_number_that_a_thread_has_by_now_is_no_process():
    ready, over = threading.Event(), threading.Event()
    numbers: list[int] = []

    def run() -> None:
        numbers.append(threading.get_native_id())
        ready.set()
        over.wait()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait()
        told = started(numbers[0], 1)
    finally:
        over.set()
        thread.join()
    assert (told.closed, told.watched) == ([7], [])


def test_what_cannot_be_found_out_is_kept(monkeypatch: pytest.MonkeyPatch):
    told = started(1 << 40, 1)  # more than a pid can be
    assert (told.closed, told.watched) == ([], [False])

    def exhausted(pid: int) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", exhausted)
    told = started(os.getpid(), 1)
    assert (told.closed, told.watched) == ([], [False])
