"""Fixtures of all lanes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that every lane finds `harness` and `seeds`

from harness import Daemon, running_daemon
from seeds import pytest_runtest_makereport, seed

__all__ = ["pytest_runtest_makereport", "seed"]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A real daemon with a 64 MiB arena; at the end it must hold nothing and leave nothing."""
    with running_daemon() as started:
        yield started


@pytest.fixture
def start_daemon() -> Iterator[Callable[..., Daemon]]:
    """`start_daemon(dram, *flags)`: as many real daemons as a test wants, each checked at the end."""
    with ExitStack() as stack:
        yield lambda *arguments, **more: stack.enter_context(running_daemon(*arguments, **more))
