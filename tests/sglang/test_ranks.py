"""Two tensor-parallel ranks: each finds its own pages, and of latent attention both the same ones."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts import Host, running_host
from sglang_engines import FOUND_TOKENS, PROMPT_PAGES, PROMPTS, Engine, References

pytestmark = pytest.mark.trial

ASKED = PROMPTS[:4]
PAGES = len(ASKED) * PROMPT_PAGES
TWO_RANKS = {"tp_size": 2}
ONE_CORE_EACH = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}


@pytest.fixture
def host() -> Iterator[Host]:
    with running_host() as started:
        yield started


def test_each_rank_finds_its_own_pages_in_a_new_process(
    host: Host, references: References, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    model = model_of("dense")
    wanted = references.answers(model)
    for life in ("first", "second"):
        with Engine(
            model,
            tmp_path / f"{life}.log",
            address=host.address,
            engine=TWO_RANKS,
            environment=ONE_CORE_EACH,
        ) as engine:
            answers = engine.generate(ASKED)
            assert answers.same_as(wanted)
            host.wait_for(lambda: host.chunks() == 2 * PAGES, f"{PAGES} pages of each rank are stored")
            if life == "first":
                engine.kill()
                continue
            assert min(answers.from_storage) >= FOUND_TOKENS, answers.from_storage
    namespaces = host.stats().namespaces
    assert sorted(namespace.label.rpartition(" ")[2] for namespace in namespaces) == ["tp0", "tp1"]
    assert all(namespace.hits >= PAGES - len(ASKED) for namespace in namespaces)


def test_latent_pages_of_one_rank_serve_two(
    host: Host, references: References, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    model = model_of("mla")
    wanted = references.answers(model)
    with Engine(model, tmp_path / "one.log", address=host.address) as one:
        assert one.generate(ASKED).same_as(wanted)
        host.wait_for(lambda: host.chunks() == PAGES, f"{PAGES} pages are stored")
    with Engine(
        model, tmp_path / "two.log", address=host.address, engine=TWO_RANKS, environment=ONE_CORE_EACH
    ) as two:
        found = two.generate(ASKED)
        assert found.same_as(wanted)
        assert min(found.from_storage) >= FOUND_TOKENS, found.from_storage
    [namespace] = host.stats().namespaces
    assert namespace.chunks == PAGES
    assert namespace.hits >= 2 * (PAGES - len(ASKED))
