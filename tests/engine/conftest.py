"""Fixtures of the real-engine tests. A test ends with no lease, pin or reserved slot left, or it fails."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import Engine, Model, References, load_model
from hosts import Host, running_host

TEST_TIMEOUT_S = (
    600  # two starts of a real engine on a busy machine; every call has a shorter deadline of its own
)
MODEL_CACHE = Path(__file__).parents[2] / ".cache" / "models"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def model_of() -> Callable[[str], Model]:
    """The tiny model of a kind: dense, mla, sliding."""
    return lambda kind: load_model(kind, MODEL_CACHE)


@pytest.fixture(scope="session")
def dense(model_of: Callable[[str], Model]) -> Model:
    return model_of("dense")


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Iterator[References]:
    answers = References(tmp_path_factory.mktemp("references"))
    yield answers
    answers.close()


@pytest.fixture
def host() -> Iterator[Host]:
    """A daemon of this test alone; at the end it must hold nothing and leave nothing."""
    with running_host() as started:
        yield started


@pytest.fixture
def start(tmp_path: Path, host: Host) -> Iterator[Callable[..., Engine]]:
    """`start(model, **options)`: an Engine on the test's daemon; it ends before the daemon does."""
    running: list[Engine] = []

    def begin(model: Model, **options: object) -> Engine:
        log = tmp_path / f"engine-{len(running)}.log"
        engine = Engine(model, log, **{"address": host.address, **options})
        running.append(engine)
        return engine

    yield begin
    for engine in running:
        engine.close()
