"""Whose memory SGLang's host pool is makes no difference to kvtier: it is copied where it lies."""

import os

import torch
from harness import Daemon
from inprocess import Case, Stack


def test_a_pool_in_shared_memory_gives_and_gets_the_same_bytes(daemon: Daemon) -> None:
    case = Case()
    with Stack(case, daemon.address, extra={"allocator": "shm"}) as first:
        allocator = first.host_pool.allocator
        # SGLang's own, and in use: what is stored lies in its file.
        assert os.fstat(allocator.fd).st_size >= first.host_pool.kv_buffer.nbytes
        tokens = first.tokens()
        kept = first.store(tokens)
    with Stack(case, daemon.address) as second:  # in private memory: the pages are the same
        assert not hasattr(second.host_pool.allocator, "fd")
        assert second.prefetch(tokens) == len(tokens)
        assert all(map(torch.equal, kept, second.load_back(tokens)))
    with Stack(case, daemon.address, extra={"allocator": "shm"}) as third:
        assert third.prefetch(tokens) == len(tokens)
        assert all(map(torch.equal, kept, third.load_back(tokens)))
