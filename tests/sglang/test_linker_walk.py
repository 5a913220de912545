"""Random requests through a linked tree, checked page by page against what their prefixes must hold.

The device has room for 32 pages and the arena for some hundred, so that both evict all the time; requests
share prefixes, come in batches, are called off, and the daemon is killed and started again.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from harness import Daemon, until
from linker_inprocess import PAGE_TOKENS, LinkedStack
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

DEPTH_MAX = 9  # pages of a prompt; every page is one of two
BATCHES = 120
Page = tuple[int, ...]  # the choices of a prefix, which name its last page


def tokens_of(path: Page) -> list[int]:
    return [1000 * depth + 100 * choice + i for depth, choice in enumerate(path) for i in range(PAGE_TOKENS)]


def content(page: Page, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the KV of this page must be: it depends on all of its prefix."""
    draw = torch.Generator().manual_seed(hash(page) & 0xFFFF_FFFF)
    return [torch.randn((PAGE_TOKENS, *b.shape[1:]), generator=draw).to(b.dtype) for b in buffers]


class Walk:
    """Requests against one stack. Counts what happened, so that a test can tell that it did."""

    def __init__(self, stack: LinkedStack, seed: int) -> None:
        self.stack, self.draw = stack, Random(seed)
        self.buffers = stack._buffers()
        self.checked_pages = self.called_off = self.failed = 0
        self._requests = 0

    def batch(self) -> None:
        """Some requests that run together."""
        admitted = []
        for _ in range(self.draw.randint(1, 3)):
            path = tuple(self.draw.randint(0, 1) for _ in range(self.draw.randint(1, DEPTH_MAX)))
            self._requests += 1
            request, found = self.stack.match(tokens_of(path), f"request {self._requests}")
            lock = self.stack.cache.inc_lock_ref(found.last_device_node).to_dec_params()
            loaded = self.stack.queue(request, found)
            if self.draw.random() < 0.15:
                self._call_off(request, found, lock)
            else:
                admitted.append((path, request, found, lock, loaded))
        rows = [self.stack.cache.linker.private_load_indices.get(request.rid) for _, request, *_ in admitted]
        _, failed = self.stack.forward(*(request for _, request, *_ in admitted))
        for (path, request, found, lock, loaded), mine in zip(admitted, rows, strict=True):
            if request in failed:
                self.failed += 1
                self.stack.allocator.free(mine)
            else:
                self._finish(path, found, mine if loaded else None)
            self.stack.cache.dec_lock_ref(found.last_device_node, lock)
        self.stack.cache.check_hicache_events()

    def _call_off(self, request: Any, found: Any, lock: Any) -> None:
        rows = self.stack.cache.linker.private_load_indices.get(request.rid)
        self.stack.cache.linker.release_request(request.rid)
        if rows is not None:
            self.stack.allocator.free(rows)
        self.stack.cache.dec_lock_ref(found.last_device_node, lock)
        self.called_off += 1

    def _finish(self, path: Page, found: Any, loaded: torch.Tensor | None) -> None:
        """Check what was found, compute the rest, and put all of it into the tree."""
        cached = self.stack.cache.path_device_indices(found.last_device_node)
        rows = cached if loaded is None else torch.cat([cached, loaded])
        for number in range(len(rows) // PAGE_TOKENS):
            self._check(path[: number + 1], rows[number * PAGE_TOKENS : (number + 1) * PAGE_TOKENS])
        there = len(rows) // PAGE_TOKENS
        computed = self._room((len(path) - there) * PAGE_TOKENS)
        for number in range(there, len(path)):
            at = computed[(number - there) * PAGE_TOKENS : (number - there + 1) * PAGE_TOKENS]
            for buffer, value in zip(self.buffers, content(path[: number + 1], self.buffers), strict=True):
                buffer[at] = value
        self.stack.insert(tokens_of(path), torch.cat([rows, computed]), owned=len(cached))

    def _check(self, page: Page, rows: torch.Tensor) -> None:
        for found, wanted in zip(self.stack.at(rows), content(page, self.buffers), strict=True):
            assert torch.equal(found, wanted), f"page {page} has the bytes of another"
        self.checked_pages += 1

    def _room(self, count: int) -> torch.Tensor:
        if not count:
            return torch.empty(0, dtype=torch.int64)
        rows = self.stack.allocator.alloc(count)
        if rows is None:
            self.stack.settle()  # offloads lock what they copy
            self.stack.cache.evict(EvictParams(num_tokens=count))
            rows = self.stack.allocator.alloc(count)
        assert rows is not None
        return rows


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_find_the_bytes_of_their_prefixes(
    start_daemon: Callable[..., Daemon], seed: int
) -> None:
    daemon = start_daemon("8MiB")
    with LinkedStack(daemon.address) as stack:
        walk = Walk(stack, seed)
        for _ in range(BATCHES):
            walk.batch()
        stack.settle()
        counters = stack.linker.counters()
        assert walk.failed == 0
        assert walk.called_off > 0
        assert counters["load_pages"] > 50
        assert counters["store_pages"] > 200
        assert walk.checked_pages > counters["load_pages"]


def test_random_requests_while_the_daemon_comes_and_goes(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as stack:
        walk = Walk(stack, 77)
        for number in range(BATCHES):
            walk.batch()
            if number % 40 == 19:
                daemon.kill()
            if number % 40 == 29:
                daemon.start()
        assert stack.linker.counters()["load_pages"] > 0
        assert walk.failed == 0
        # Only a client that is attached can say that what it was storing when the daemon ended is over.
        until(lambda: stack.linker._client.connected, "the linker has attached anew", 30)
