"""Fixtures of the native tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from native_host import Host


@pytest.fixture
def host() -> Iterator[Host]:
    """A served store of 16 MiB; at the end every session is closed and nothing may be held."""
    started = Host()
    try:
        yield started
        for row in started.store.sessions():
            started.store.close_session(row["session"], True)
        held = {
            name: count
            for name, count in started.store.stats().items()
            if name in ("pinned_slots", "reserved_slots", "quarantined_slots", "read_leases", "write_leases")
            and count
        }
        assert held == {}
        assert started.store.audit() == []
    finally:
        started.close()
