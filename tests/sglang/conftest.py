"""Fixtures of the SGLang tests: its real code on CPUs, with stand-ins for what it lacks there."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sglang_engines import References

from kvtier.demo.models import make_model

HERE = Path(__file__).parent
STANDINS = HERE / "standins"
MODEL_CACHE = Path(__file__).parents[2] / ".cache" / "models"
TEST_TIMEOUT_S = 900  # starts of a real engine on a busy machine; every call has a deadline of its own


def pytest_configure() -> None:
    """In this process and, by the environment, in those that an engine starts; before SGLang is imported."""
    sys.path.insert(0, str(STANDINS))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STANDINS), os.environ.get("PYTHONPATH")]))
    os.environ.update(SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1")
    from sglang.srt.plugins import load_plugins

    load_plugins()  # the stand-in for the copies between device and host pools


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def model_of() -> Callable[[str], Path]:
    """The tiny model of a kind: dense, mla."""
    return lambda kind: make_model(kind, MODEL_CACHE)


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("references"))
