"""The administration of a running server: detach, attach, clear, and the policies of an operator."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts import Host, running_host
from sglang_engines import FOUND_TOKENS, PROMPT_PAGES, PROMPTS, Answers, References
from sglang_server import STORAGE, Server, running_server

pytestmark = pytest.mark.trial

ASKED = PROMPTS[:2]
PAGES = len(ASKED) * PROMPT_PAGES


@pytest.fixture(scope="module")
def shared_host() -> Iterator[Host]:
    with running_host() as started:
        yield started


@pytest.fixture(scope="module")
def wanted(references: References, model_of: Callable[[str], Path]) -> Answers:
    return references.answers(model_of("dense"))


@pytest.fixture(scope="module")
def shared_server(
    shared_host: Host,
    wanted: Answers,
    model_of: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    with running_server(model_of("dense"), shared_host.address, log) as started:
        yield started


@pytest.fixture
def server(shared_server: Server) -> Server:
    """Attached, with nothing stored: neither in its own pools nor in kvtier."""
    shared_server.forget()
    shared_server.call("DELETE", STORAGE)
    status, text = shared_server.attach(storage_prefetch_policy="wait_complete", write_policy="write_through")
    assert status == 200, text
    shared_server.done("POST", f"{STORAGE}/clear")
    return shared_server


def stored(server: Server, host: Host, wanted: Answers) -> None:
    """ASKED is in kvtier, and only there."""
    assert server.generate(ASKED).same_as(wanted)
    host.wait_for(lambda: host.chunks() >= PAGES, f"{PAGES} pages are stored")
    server.forget()


def test_detached_it_finds_nothing_and_attached_again_all(
    server: Server, shared_host: Host, wanted: Answers
) -> None:
    stored(server, shared_host, wanted)
    server.done("DELETE", STORAGE)
    shared_host.wait_for(lambda: shared_host.sessions() == 0, "the session has ended")
    alone = server.generate(ASKED)
    assert alone.same_as(wanted)
    assert alone.from_storage == [0] * len(ASKED)

    server.forget()
    status, text = server.attach()
    assert status == 200, text
    found = server.generate(ASKED)
    assert found.same_as(wanted)
    assert min(found.from_storage) >= FOUND_TOKENS, found.from_storage
    assert server.metric("prefetched_tokens_total") >= len(ASKED) * FOUND_TOKENS
    assert server.metric("backuped_tokens_total") > 0


def test_what_is_refused_leaves_the_server_as_it_was(
    server: Server, shared_host: Host, wanted: Answers
) -> None:
    server.done("DELETE", STORAGE)
    status, text = server.attach(extra={"adress": "unix:/nowhere"})
    assert status == 400
    assert "unknown key 'adress'" in text
    assert shared_host.sessions() == 0
    assert server.generate(ASKED).same_as(wanted)
    server.forget()
    status, text = server.attach()
    assert status == 200, text
    stored(server, shared_host, wanted)
    assert min(server.generate(ASKED).from_storage) >= FOUND_TOKENS


def test_after_a_clear_nothing_is_found(server: Server, shared_host: Host, wanted: Answers) -> None:
    stored(server, shared_host, wanted)
    server.done("POST", f"{STORAGE}/clear")
    assert shared_host.chunks() == 0
    computed = server.generate(ASKED)
    assert computed.same_as(wanted)
    assert computed.from_storage == [0] * len(ASKED)


@pytest.mark.parametrize("policy", ["timeout", "best_effort"])
def test_a_prefetch_that_is_not_waited_for_to_its_end(
    server: Server, shared_host: Host, wanted: Answers, policy: str
) -> None:
    """What has come by the engine's own end of waiting is used, and it is the right bytes."""
    status, text = server.attach(storage_prefetch_policy=policy)
    assert status == 200, text
    stored(server, shared_host, wanted)
    hits = shared_host.hit_chunks()
    found = server.generate(ASKED)
    assert found.same_as(wanted)
    if policy == "timeout":
        assert min(found.from_storage) >= FOUND_TOKENS, found.from_storage
    shared_host.wait_for(lambda: shared_host.hit_chunks() > hits, "kvtier was asked")


def test_written_back_only_when_it_has_to_leave_the_engine(
    server: Server, shared_host: Host, wanted: Answers
) -> None:
    status, text = server.attach(write_policy="write_back")
    assert status == 200, text
    assert server.generate(PROMPTS[:1]).same_as(wanted)
    assert shared_host.chunks() == 0
    assert server.generate(PROMPTS).same_as(wanted)  # more than its pools hold
    shared_host.wait_for(lambda: shared_host.chunks() >= PROMPT_PAGES, "what was evicted is stored")
    assert shared_host.chunks() < len(PROMPTS) * PROMPT_PAGES
    found = server.generate(ASKED)
    assert found.same_as(wanted)
    assert sum(found.from_storage) > 0, found.from_storage


def test_pages_that_go_through_python(server: Server, shared_host: Host, wanted: Answers) -> None:
    server.done("DELETE", STORAGE)
    status, text = server.attach(extra={"interface_v1": 0})
    assert status == 200, text
    stored(server, shared_host, wanted)
    found = server.generate(ASKED)
    assert found.same_as(wanted)
    assert min(found.from_storage) >= FOUND_TOKENS, found.from_storage
