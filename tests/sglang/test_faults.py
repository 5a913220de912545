"""What is refused, and what an absent or ended daemon costs: never an exception, never a wait without end."""

import time
from pathlib import Path

import pytest
import torch
from harness import Daemon, until
from inprocess import Case, Stack
from kvtier_connectors.sglang_hicache.pools import UnsupportedPool

KEYS = [f"{i:064x}" for i in range(4)]
HOST_TOKENS = torch.arange(4 * 16)
NOTICEABLE_S = 2.0  # forty times the deadline of one call


def test_an_unknown_pool_is_refused_and_nothing_is_served_then(daemon: Daemon) -> None:
    with Stack(Case(), daemon.address) as stack:
        with pytest.raises(UnsupportedPool, match="'indexer' of class"):
            stack.backend.register_mem_host_pool_v2(stack.host_pool, "indexer")
        assert stack.backend.batch_set_v1(KEYS, HOST_TOKENS) == [False] * 4
        assert stack.backend.batch_exists(KEYS) == 0


def test_an_unknown_setting_is_refused(daemon: Daemon) -> None:
    with pytest.raises(ValueError, match="unknown key 'addres'"):
        Stack(Case(), daemon.address, extra={"addres": "unix:/x"})


def test_without_a_daemon_everything_is_a_miss_at_once(tmp_path: Path) -> None:
    with Stack(Case(), f"unix:{tmp_path}/nobody.sock") as stack:
        began_s = time.monotonic()
        assert stack.backend.batch_set_v1(KEYS, HOST_TOKENS) == [False] * 4
        assert stack.backend.batch_exists(KEYS) == 0
        assert stack.backend.batch_get_v1(KEYS, HOST_TOKENS) == [False] * 4
        assert time.monotonic() - began_s < NOTICEABLE_S


def test_a_killed_daemon_is_a_miss_and_its_successor_a_hit(daemon: Daemon) -> None:
    with Stack(Case(), daemon.address) as stack:
        assert stack.backend.batch_set_v1(KEYS, HOST_TOKENS) == [True] * 4
        until(lambda: stack.backend.batch_exists(KEYS) == 4, "the pages are there")
        daemon.kill()
        began_s = time.monotonic()
        assert stack.backend.batch_get_v1(KEYS, HOST_TOKENS) == [False] * 4
        assert time.monotonic() - began_s < NOTICEABLE_S
        daemon.start()
        until(lambda: stack.backend.batch_exists(KEYS) == 4, "the backend has attached anew", 20)
        assert stack.backend.batch_get_v1(KEYS, HOST_TOKENS) == [True] * 4


def test_indices_that_are_no_pages_are_a_miss(daemon: Daemon) -> None:
    with Stack(Case(), daemon.address) as stack:
        assert stack.backend.batch_set_v1(KEYS, HOST_TOKENS + 1) == [False] * 4
        assert stack.backend.batch_exists(KEYS) == 0


def test_clear_and_close(daemon: Daemon) -> None:
    with Stack(Case(), daemon.address) as stack:
        backend = stack.backend
        assert backend.batch_set_v1(KEYS, HOST_TOKENS) == [True] * 4
        until(lambda: backend.batch_exists(KEYS) == 4, "the pages are there")
        assert sum(backend.get_stats().backup_pgs) == 4
        assert backend.get_stats().backup_pgs == []
        assert backend.clear()
        assert backend.batch_exists(KEYS) == 0
    backend.close()
    assert backend.batch_set_v1(KEYS, HOST_TOKENS) == [False] * 4
