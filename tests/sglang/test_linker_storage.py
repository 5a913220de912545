"""A linker's pages on storage: they are promised once they have come, and what is lost is never promised."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Daemon, until
from linker_inprocess import PAGE_TOKENS, LinkedStack

PAGES = 6
PROMPT = list(range(100, 100 + PAGES * PAGE_TOKENS))
StartDaemon = Callable[..., Daemon]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def kept(start_daemon: StartDaemon, root: Path) -> list[torch.Tensor]:
    """What a host that is gone has left on storage, and nowhere else."""
    host = start_daemon("64MiB", "--storage", str(root), "--storage-poll", "100ms")
    with LinkedStack(host.address) as stack:
        stored = stack.store(PROMPT)
        stack.settle()
        until(lambda: host.counters()["storage_demoted_chunks"] == PAGES, "all pages are on storage")
    host.finish()
    return stored


@pytest.fixture
def successor(start_daemon: StartDaemon, root: Path) -> Daemon:
    return start_daemon("64MiB", "--storage", str(root), "--storage-poll", "100ms")


def test_pages_on_storage_count_once_they_have_come(kept: list[torch.Tensor], successor: Daemon) -> None:
    with LinkedStack(successor.address, lookup_wait_ms=0) as stack:

        def whole() -> bool:
            return bool(stack.match(PROMPT)[1].host_hit_length == len(PROMPT))

        until(whole, "the request that waits finds all its pages", 20)
        request, found = stack.match(PROMPT)
        stack.queue(request, found)
        (loaded,), failed = stack.forward(request)
        assert not failed
        assert all(map(torch.equal, kept, loaded))


def test_a_corrupt_page_is_computed_and_ends_no_request(
    kept: list[torch.Tensor], successor: Daemon, root: Path
) -> None:
    with LinkedStack(successor.address, lookup_wait_ms=10_000) as stack:
        namespace = stack.linker._promises._namespace
        until(lambda: namespace.attached, "the namespace is open")
        (segment,) = root.glob("v1/*/hosts/*/seg-*.kvs")
        with segment.open("r+b") as file:
            data = bytearray(file.read())
            page = kept[0][2 * PAGE_TOKENS : 3 * PAGE_TOKENS].contiguous().view(torch.uint8).numpy().tobytes()
            at = data.index(page)  # the third page's first region
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
        until(lambda: stack.match(PROMPT)[1].host_hit_length, "the pages before it are promised", 20)
        request, found = stack.match(PROMPT)
        assert found.host_hit_length == 2 * PAGE_TOKENS
        assert stack.queue(request, found) == 2 * PAGE_TOKENS
        (loaded,), failed = stack.forward(request)
        assert not failed
        assert all(
            torch.equal(mine[: 2 * PAGE_TOKENS], theirs) for mine, theirs in zip(kept, loaded, strict=True)
        )
