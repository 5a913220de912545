"""SGLang's tree linked to kvtier without a host tier: bytes, promises, and what faults cost."""

import signal
import time

import pytest
import torch
from harness import Daemon, until
from kvtier_connectors.sglang_linker.promises import RENEW_S
from linker_inprocess import PAGE_TOKENS, LinkedStack

PAGES = 6
DEADLINE_MS = 500
PROMPT = list(range(100, 100 + PAGES * PAGE_TOKENS))


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_another_stack_loads_the_same_bytes(daemon: Daemon, kind: str) -> None:
    with LinkedStack(daemon.address, kind=kind) as first:
        kept = first.store(PROMPT)
        first.settle()
        assert first.linker.counters()["store_pages"] == PAGES

    with LinkedStack(daemon.address, kind=kind) as second:
        request, found = second.match(PROMPT)
        assert found.host_hit_length == len(PROMPT)
        assert second.queue(request, found) == len(PROMPT)
        (loaded,), failed = second.forward(request)
        assert not failed
        assert len(loaded) == len(kept)
        assert all(map(torch.equal, kept, loaded))


def test_loaded_pages_are_not_stored_again(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as first:
        first.store(PROMPT)
        first.settle()
    with LinkedStack(daemon.address) as second:
        request, found = second.match(PROMPT)
        second.queue(request, found)
        rows = second.cache.linker.private_load_indices[request.rid]
        second.forward(request)
        second.insert(PROMPT, rows)
        assert second.cache.linker.pending_offloads, "the tree offers them"
        second.settle()
        assert "store_pages" not in second.linker.counters()


def test_a_promise_is_kept_without_the_daemon(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as first:
        kept = first.store(PROMPT)
        first.settle()
    with LinkedStack(daemon.address) as second:
        request, found = second.match(PROMPT)
        daemon.kill()
        assert second.queue(request, found) == len(PROMPT)
        (loaded,), failed = second.forward(request)
        assert not failed
        assert all(map(torch.equal, kept, loaded))
        # Nothing new is promised, and nothing fails for want of a daemon.
        _, found = second.match(PROMPT, "another")
        assert found.host_hit_length == 0
        second.store(list(range(900, 900 + PAGE_TOKENS)))
        second.settle()
        daemon.start()
        until(lambda: second.match(PROMPT, "later")[1].host_hit_length, "the linker has attached anew", 20)


def test_a_promise_goes_back_when_it_is_not_asked_about(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as stack:
        stack.store(PROMPT)
        stack.settle()
        stack.cache.reset()
        now_s = [0.0]
        stack.linker._promises._clock = lambda: now_s[0]
        stack.match(PROMPT)
        pinned = sum(session.pinned_slots for session in daemon.stats().sessions)
        assert pinned == PAGES
        now_s[0] += 3600
        stack.cache.check_hicache_events()
        until(lambda: not sum(s.read_leases for s in daemon.stats().sessions), "the lease is back")


def test_a_promise_is_made_anew_before_its_lease_ends(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as stack:
        stack.store(PROMPT)
        stack.settle()
        stack.cache.reset()
        promises, now_s = stack.linker._promises, [0.0]
        promises._clock = lambda: now_s[0]
        seen = []
        for passed_s in (0, RENEW_S / 2, RENEW_S / 2):
            now_s[0] += passed_s
            assert stack.match(PROMPT, "queued")[1].host_hit_length == len(PROMPT)
            seen += promises._held.values()
        assert seen[0] is seen[1]
        assert seen[1] is not seen[2]
        until(lambda: sum(s.read_leases for s in daemon.stats().sessions) == 1, "the former lease is back")


def test_a_load_that_was_called_off_gives_its_lease_back(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as stack:
        stack.store(PROMPT)
        stack.settle()
        stack.cache.reset()
        request, found = stack.match(PROMPT)
        stack.queue(request, found)
        stack.cache.linker.release_request(request.rid)
        until(lambda: not sum(s.read_leases for s in daemon.stats().sessions), "the lease is back")
        assert stack.cache.ready_to_load_host_cache() == -1


def test_a_lost_promise_is_computed_by_one_rank_alone(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as stack:
        stack.store(PROMPT)
        stack.settle()
        stack.cache.reset()
        request, found = stack.match(PROMPT)
        stack.linker._promises.drop_all()
        assert stack.queue(request, found) == 0


def test_a_failed_load_is_reported_and_stops_promises(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LinkedStack(daemon.address) as stack:
        stack.store(PROMPT)
        stack.settle()
        stack.cache.reset()
        request, found = stack.match(PROMPT)
        stack.queue(request, found)
        with monkeypatch.context() as broken:
            broken.setattr(stack.linker._copier, "copy_parts", lambda *_args: 0)
            _, failed = stack.forward(request)
        assert failed == [request]
        assert request.skip_radix_cache_insert
        assert stack.match(PROMPT, "next")[1].host_hit_length == 0
        breaker = stack.linker._breaker
        monkeypatch.setattr(breaker, "_clock", lambda: breaker._until_s)
        assert stack.match(PROMPT, "next")[1].host_hit_length == len(PROMPT)


def test_a_batch_that_never_began_has_not_landed(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as stack:
        assert not stack.linker.finish_layer_wise_loading(-1)
        assert not stack.linker.finish_layer_wise_loading(0)


def test_of_several_ranks_one_that_lost_its_promise_loads_nothing_and_says_so(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as stack:
        stack.store(PROMPT)
        stack.settle()
        stack.cache.reset()
        stack.linker._alone = False  # the others have queued theirs
        request, found = stack.match(PROMPT)
        stack.linker._promises.drop_all()
        assert stack.queue(request, found) == len(PROMPT)
        _, failed = stack.forward(request)
        assert failed == [request]


def test_a_hung_daemon_costs_one_deadline(daemon: Daemon) -> None:
    with LinkedStack(daemon.address) as first:  # a patient one: it must store
        first.store(PROMPT)
        first.settle()
    with LinkedStack(daemon.address, deadline_ms=DEADLINE_MS) as stack:
        until(lambda: stack.match(PROMPT, "before")[1].host_hit_length, "the linker has attached", 20)
        daemon.signal(signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            for i in range(20):
                assert stack.match(PROMPT, f"request {i}")[1].host_hit_length == 0
            assert time.monotonic() - began_s < 10 * DEADLINE_MS / 1000  # not once for each request
        finally:
            daemon.signal(signal.SIGCONT)
        until(lambda: stack.match(PROMPT, "later")[1].host_hit_length, "the linker has attached anew", 20)


def test_a_fault_in_the_load_thread_leaves_no_forward_pass_waiting(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LinkedStack(daemon.address) as stack:
        stack.store(PROMPT)
        stack.settle()
        stack.cache.reset()
        request, found = stack.match(PROMPT)
        stack.queue(request, found)
        namespace = stack.linker._loads._namespace
        release = namespace.release_slots
        with monkeypatch.context() as broken:
            broken.setattr(namespace, "release_slots", lambda lease: release(lease) or 1 / 0)
            broken.setattr(stack.linker._copier, "copy_parts", lambda *_args: 1 / 0)
            _, failed = stack.forward(request)
        assert failed == [request]
