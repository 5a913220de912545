"""One backend called by three threads at once, as SGLang does; a medium that hangs under one of them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from harness import PATIENT_MS, Daemon, until
from inprocess import Case, Stack
from kvtier_connectors.common.guard import faults
from storing_hosts import hanging, hanging_host

PAGE_TOKENS = 16
PAGES = 4  # of one batch
ROUNDS = 50
JOIN_S = 120.0
LOAD_DEADLINE_MS = 1000
STORED = torch.arange(PAGES * PAGE_TOKENS)
LOADED = STORED + PAGES * PAGE_TOKENS
PATIENT = {"deadline_ms": PATIENT_MS}


def keys_of(batch: int) -> list[str]:
    return [f"{batch * PAGES + page:064x}" for page in range(PAGES)]


class Threads:
    """Run each of these to its end; the first exception of any is the caller's."""

    def __init__(self, *jobs: Callable[[], None]) -> None:
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(job,)) for job in jobs]

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # told to the caller
            self._errors.append(error)

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(JOIN_S)
        assert not any(thread.is_alive() for thread in self._threads)
        if self._errors:
            raise self._errors[0]


def test_one_stores_one_loads_one_asks(daemon: Daemon) -> None:
    """Each batch has bytes of its own, stored from one half of the host pool and loaded into the other."""
    with Stack(Case(), daemon.address, extra=PATIENT) as stack:
        backend, rows = stack.backend, stack.host_pool.kv_buffer
        ended = threading.Event()

        def content(batch: int) -> torch.Tensor:
            return torch.full_like(rows[:, STORED], batch + 1)

        def store() -> None:
            for batch in range(ROUNDS):
                rows[:, STORED] = content(batch)
                assert backend.batch_set_v1(keys_of(batch), STORED) == [True] * PAGES

        def load() -> None:
            for batch in range(ROUNDS):
                until(lambda asked=batch: backend.batch_exists(keys_of(asked)) == PAGES, "stored", JOIN_S)
                assert backend.batch_get_v1(keys_of(batch), LOADED) == [True] * PAGES
                assert torch.equal(rows[:, LOADED], content(batch)), f"batch {batch}"
            ended.set()

        def ask() -> None:
            known = 0
            while not ended.is_set():
                every = [key for batch in range(ROUNDS) for key in keys_of(batch)]
                found = backend.batch_exists(every)
                assert found >= known  # in the order in which they were stored, and none is lost
                known = found

        Threads(store, load, ask).run()
        assert backend.counters()["load_pages"] == ROUNDS * PAGES


def test_a_close_in_the_middle_of_everything(daemon: Daemon) -> None:
    """Calls under way end, later ones find nothing, and none of them raises."""
    with Stack(Case(), daemon.address, extra=PATIENT) as stack:
        backend = stack.backend
        stored, closed = threading.Event(), threading.Event()

        def calls(call: Callable[[list[str]], object]) -> Callable[[], None]:
            def run() -> None:
                batch = 0
                while not closed.is_set():
                    call(keys_of(batch % ROUNDS))
                    batch += 1
                    if batch == ROUNDS:
                        stored.set()

            return run

        def close() -> None:
            assert stored.wait(JOIN_S)
            backend.close()
            closed.set()

        Threads(
            calls(lambda keys: backend.batch_set_v1(keys, STORED)),
            calls(lambda keys: backend.batch_get_v1(keys, LOADED)),
            calls(backend.batch_exists),
            close,
        ).run()
        before = stack.host_pool.kv_buffer.clone()
        assert backend.batch_get_v1(keys_of(0), LOADED) == [False] * PAGES
        assert torch.equal(stack.host_pool.kv_buffer, before)


@pytest.fixture(autouse=True)
def no_fault_swallowed() -> Iterator[None]:
    before = faults.copy()
    yield
    assert faults == before


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def test_a_get_from_a_medium_that_hangs_ends_and_writes_nothing_later(tmp_path: Path, gate: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    extra = {**PATIENT, "load_deadline_ms": LOAD_DEADLINE_MS}
    with hanging_host(root, gate) as host, Stack(Case(), host.address, extra=extra) as stack:
        backend, rows = stack.backend, stack.host_pool.kv_buffer
        rows[:, STORED] = 7
        assert backend.batch_set_v1(keys_of(0), STORED) == [True] * PAGES
        with host.control() as control:
            assert control.flush(JOIN_S)
        assert host.stop() == 0
        with hanging(gate):
            host.start(fresh=True)
            until(
                lambda: backend.batch_exists(keys_of(0)) == PAGES,
                "attached anew, and seen on storage",
                JOIN_S,
            )
            rows[:, LOADED] = 3
            rows[:, STORED] = 5

            def get() -> None:
                assert backend.batch_get_v1(keys_of(0), LOADED) == [False] * PAGES

            def store() -> None:  # not held up by the one that waits
                assert backend.batch_set_v1(keys_of(1), STORED) == [True] * PAGES

            Threads(get, store).run()
        # The record comes now, after the call: into the arena, and not into the engine's memory.
        until(
            lambda: backend.batch_get_v1(keys_of(0), STORED) == [True] * PAGES, "the medium is back", JOIN_S
        )
        assert (rows[:, STORED] == 7).all()
        assert (rows[:, LOADED] == 3).all()
