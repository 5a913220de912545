"""A real engine: what it computed comes back to another process as the same tokens, or not at all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hosts import Host
from sglang_engines import FOUND_TOKENS, PAGE_TOKENS, PROMPT_PAGES, PROMPTS, Answers, Engine, References
from storing_hosts import spoil_segments, storing_host

ASKED = PROMPTS[:4]
PAGES = len(ASKED) * PROMPT_PAGES


@dataclass(frozen=True)
class Restarted:
    """An engine on a host with storage, that a former engine has filled with its answers to ASKED."""

    host: Host
    root: Path
    engine: Engine
    wanted: Answers


@pytest.fixture(scope="module", params=["dense", "mla"])
def restarted(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    references: References,
    model_of: Callable[[str], Path],
) -> Iterator[Restarted]:
    model = model_of(request.param)
    wanted = references.answers(model)
    logs, root = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("root")
    with storing_host(root) as host:
        with Engine(model, logs / "first.log", address=host.address) as first:
            assert first.generate(ASKED).same_as(wanted)
            host.wait_for(lambda: host.chunks() >= PAGES, f"{PAGES} pages are stored")
            first.kill()
        with Engine(model, logs / "second.log", address=host.address) as second:
            yield Restarted(host, root, second, wanted)


def test_a_new_process_finds_what_the_last_one_computed(restarted: Restarted) -> None:
    found = restarted.engine.generate(ASKED)
    assert found.same_as(restarted.wanted)
    assert min(found.from_storage) >= FOUND_TOKENS, found.from_storage
    assert restarted.host.hit_chunks() >= len(ASKED) * FOUND_TOKENS // PAGE_TOKENS


def test_wrong_bytes_on_storage_are_a_miss(restarted: Restarted) -> None:
    host, engine = restarted.host, restarted.engine
    host.wait_for(lambda: host.counters()["storage_demoted_chunks"] >= PAGES, f"{PAGES} pages are on storage")
    assert host.stop() == 0
    assert spoil_segments(restarted.root, first=8) > 0
    host.start(fresh=True)
    host.wait_for(
        lambda: host.sessions() == 1 and host.has_namespace() and host.counters()["storage_records"] >= PAGES,
        "engine and storage are back",
    )
    engine.forget()
    some = engine.generate(ASKED)
    assert some.same_as(restarted.wanted)
    assert host.counters()["storage_failed_corrupt"] > 0
    assert 0 < sum(some.from_storage) < len(ASKED) * FOUND_TOKENS, some.from_storage

    # What was computed instead is there for the next request, whole.
    host.wait_for(lambda: host.chunks() >= PAGES, "what was lost is stored anew")
    engine.forget()
    again = engine.generate(ASKED)
    assert again.same_as(restarted.wanted)
    assert min(again.from_storage) >= FOUND_TOKENS, again.from_storage


def test_wrong_bytes_in_memory_would_show(restarted: Restarted) -> None:
    """The control of the others: this engine's answers do depend on what kvtier gives it."""
    restarted.engine.forget()
    assert restarted.host.spoil_every_chunk() >= PAGES
    spoilt = restarted.engine.generate(ASKED)
    assert min(spoilt.from_storage) >= FOUND_TOKENS
    assert not spoilt.same_as(restarted.wanted)
