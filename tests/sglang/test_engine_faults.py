"""An engine whose daemon dies, stands still or waits for a medium that hangs: right answers, and on."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hosts import Host, running_host
from sglang_engines import FOUND_TOKENS, PROMPT_PAGES, PROMPTS, Answers, Engine, References
from storing_hosts import hanging, hanging_host

pytestmark = pytest.mark.trial

LOAD_DEADLINE_MS = 2000
DEMOTE_S = 60.0
PAGES = len(PROMPTS) * PROMPT_PAGES
TRIES = 40
FAILURES = {
    "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.4",
    "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.05",
}


@dataclass(frozen=True)
class Trial:
    """An engine that has stored nothing yet, on a host of its own whose medium can be made to hang."""

    host: Host
    engine: Engine
    wanted: Answers
    gate: Path

    def empty(self) -> None:
        """Start the host anew, with nothing in its DRAM, and empty the engine."""
        assert self.host.stop() == 0
        self.host.start(fresh=True)
        self.attached()
        self.engine.forget()

    def attached(self) -> None:
        self.host.wait_for(
            lambda: self.host.sessions() == 1 and self.host.has_namespace(), "the engine is back"
        )

    def found_whole(self) -> None:
        """What was lost is stored anew, and found."""
        self.engine.forget()
        assert self.engine.generate(PROMPTS).same_as(self.wanted)
        self.host.wait_for(lambda: self.host.chunks() >= PAGES, f"{PAGES} pages are stored")
        self.engine.forget()
        found = self.engine.generate(PROMPTS)
        assert found.same_as(self.wanted)
        assert min(found.from_storage) >= FOUND_TOKENS, found.from_storage


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, references: References, model_of: Callable[[str], Path]
) -> Iterator[Trial]:
    model = model_of("dense")
    wanted = references.answers(model)
    directory, root = tmp_path_factory.mktemp("trial"), tmp_path_factory.mktemp("root")
    gate = directory / "gate"
    with (
        hanging_host(root, gate) as host,
        Engine(
            model,
            directory / "engine.log",
            address=host.address,
            extra={"load_deadline_ms": LOAD_DEADLINE_MS},
        ) as engine,
    ):
        yield Trial(host, engine, wanted, gate)


@pytest.fixture
def trial(shared: Trial) -> Trial:
    """With nothing in its own pools and nothing in DRAM. What is on storage is of no use to it: cleared."""
    shared.attached()
    with shared.host.control() as control:
        for namespace in control.list_namespaces():
            control.clear_namespace(namespace.id)
    shared.engine.forget()
    return shared


def test_a_daemon_killed_in_mid_run(trial: Trial) -> None:
    trial.engine.ask(PROMPTS)
    trial.host.wait_for(lambda: trial.host.chunks() >= PROMPT_PAGES, "a first prompt is stored")
    trial.host.kill()
    assert trial.engine.answers().same_as(trial.wanted)
    trial.host.start()
    assert PROMPT_PAGES <= trial.host.chunks() < PAGES  # it was in mid-run, and what it had is kept
    trial.attached()
    trial.found_whole()


def test_a_daemon_that_stands_still_in_mid_run(trial: Trial) -> None:
    trial.engine.ask(PROMPTS)
    trial.host.wait_for(lambda: trial.host.chunks() >= PROMPT_PAGES, "a first prompt is stored")
    trial.host.signal(signal.SIGSTOP)
    try:
        assert trial.engine.answers().same_as(trial.wanted)
    finally:
        trial.host.signal(signal.SIGCONT)
    assert trial.host.chunks() < PAGES
    trial.attached()
    trial.found_whole()


def test_a_medium_that_hangs_costs_a_request_its_deadline(trial: Trial) -> None:
    host, asked = trial.host, PROMPTS[:2]
    pages = len(asked) * PROMPT_PAGES
    assert trial.engine.generate(asked).same_as(trial.wanted)
    host.wait_for(lambda: host.chunks() >= pages, f"{pages} pages are stored")
    with host.control() as control:
        assert control.flush(DEMOTE_S)
    trial.empty()
    host.wait_for(lambda: host.counters()["storage_records"] >= pages, "the records are seen")
    with hanging(trial.gate):
        began_s = time.monotonic()
        late = trial.engine.generate(asked[:1])
        spent_s = time.monotonic() - began_s
        assert late.same_as(trial.wanted)
        assert late.from_storage == [0]
        assert spent_s >= LOAD_DEADLINE_MS / 1000  # it did hang
        host.wait_for(lambda: not host.leased(), "the lease is back though the medium hangs")
    trial.engine.forget()
    assert trial.engine.generate(asked).same_as(trial.wanted)
    host.wait_for(lambda: host.chunks() >= pages, "all is in memory")
    trial.engine.forget()
    found = trial.engine.generate(asked)
    assert found.same_as(trial.wanted)
    assert min(found.from_storage) >= FOUND_TOKENS, found.from_storage


def test_sglangs_own_failure_injector(
    tmp_path: Path, references: References, model_of: Callable[[str], Path]
) -> None:
    """Two calls in five fail, all are late: every answer is right, and some of it still comes from kvtier."""
    model, asked = model_of("dense"), PROMPTS[:3]
    wanted = references.answers(model)
    with (
        running_host() as host,
        Engine(model, tmp_path / "engine.log", address=host.address, environment=FAILURES) as engine,
    ):
        seen: set[bool] = set()
        for _ in range(TRIES):
            answers = engine.generate(asked)
            assert answers.same_as(wanted)
            seen |= {tokens > 0 for tokens in answers.from_storage}
            engine.forget()
            if seen == {True, False} and host.hit_chunks() > 0:
                break
        assert seen == {True, False}
        assert "test injector enabled" in engine.log_text()
