"""One seed for a test's randomness; a failure names it, and the command that runs the same again."""

import os
import random
from collections.abc import Generator

import pytest

SEED = pytest.StashKey[int]()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """KVTIER_SEED, or drawn."""
    wanted = os.environ.get("KVTIER_SEED")
    value = int(wanted, 0) if wanted else random.SystemRandom().randrange(1 << 32)
    request.node.stash[SEED] = value
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the seed and the command to what is said of a test that failed."""
    report = yield
    seed = item.stash.get(SEED, None)
    if report.failed and seed is not None:
        report.sections.append(("seed", f"again: KVTIER_SEED={seed} pytest '{item.nodeid}'"))
    return report
