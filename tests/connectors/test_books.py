"""Leases go back exactly once, and only after every worker has reported."""

import random

import numpy as np
import pytest
from kvtier_connectors.vllm_connector.books import Books

from kvtier import SlotLease


class Home:
    def __init__(self):
        self.calls = []

    def commit_slots(self, lease):
        self.calls.append(("commit", lease.lease))
        return True

    def abort_slots(self, lease):
        self.calls.append(("abort", lease.lease))

    def release_slots(self, lease):
        self.calls.append(("release", lease.lease))


def lease(number, chunks=2):
    zeros = np.zeros(chunks, np.uint32)
    return SlotLease(number, 1, 1, zeros, zeros, zeros.astype(np.uint64))


def opened(books, home, job, *, is_store, number=None, request="r"):
    ticket = books.open(request, is_store=is_store, leases=[(home, lease(number or job))])
    books.bind(job, ticket.number)
    return ticket


@pytest.mark.parametrize(
    ("is_store", "failed", "how"),
    [(True, False, "commit"), (True, True, "abort"), (False, False, "release"), (False, True, "release")],
)
def test_after_the_last_worker(is_store, failed, how):
    books, home = Books(2), Home()
    opened(books, home, 5, is_store=is_store)
    books.settle({5: 1}, {5} if failed else ())
    assert home.calls == []
    assert len(books) == 1
    books.settle({5: 1}, ())
    assert home.calls == [(how, 5)]
    assert len(books) == 0
    books.settle({5: 1}, ())
    assert home.calls == [(how, 5)]


def test_a_failure_names_its_request_and_counts_nothing_as_loaded():
    books, home = Books(2), Home()
    opened(books, home, 1, is_store=False, request="sick")
    opened(books, home, 2, is_store=False, request="well")
    first = books.settle({1: 1, 2: 2}, {1})
    assert (first.loaded_chunks, first.failed_loads) == (2, 0)
    last = books.settle({1: 1}, ())
    assert last.failed_load_requests == ["sick"]
    assert (last.loaded_chunks, last.failed_loads) == (0, 1)


def test_a_void_job_stores_nothing():
    books, home = Books(1), Home()
    ticket = books.open("r", is_store=True, leases=[(home, lease(3))], failed=True)
    books.bind(9, ticket.number)
    books.settle({9: 1}, ())
    assert home.calls == [("abort", 3)]


def test_leases_without_a_job_go_back():
    books, home = Books(1), Home()
    books.open("r", is_store=True, leases=[(home, lease(1))])
    books.open("r", is_store=False, leases=[(home, lease(2))])
    opened(books, home, 7, is_store=True, number=3)
    assert books.drop_unbound() == 2
    assert sorted(home.calls) == [("abort", 1), ("release", 2)]
    books.settle({7: 1}, ())
    assert ("commit", 3) in home.calls


def test_reports_of_unknown_jobs_are_ignored():
    books, home = Books(1), Home()
    assert books.settle({4: 1}, {4, 5}).failed_loads == 0
    assert home.calls == []


@pytest.mark.parametrize("seed", range(20))
def test_exactly_once_in_any_order(seed):
    """Reports of three workers for forty jobs, shuffled into steps, some failing, some said twice."""
    rng = random.Random(seed)
    books, home = Books(3), Home()
    kinds = {job: rng.random() < 0.5 for job in range(1, 41)}
    failing = {job for job in kinds if rng.random() < 0.2}
    for job, is_store in kinds.items():
        opened(books, home, job, is_store=is_store)
    reports = [job for job in kinds for _ in range(3)]
    rng.shuffle(reports)
    told: dict[int, int] = {}
    while reports:
        step = [reports.pop() for _ in range(min(len(reports), rng.randint(1, 7)))]
        completed = {job: step.count(job) for job in set(step)}
        for job in completed:
            told[job] = told.get(job, 0) + completed[job]
        before = len(home.calls)
        books.settle(completed, failing & set(step))
        assert len(home.calls) - before == sum(told[job] == 3 for job in completed)
        books.settle({job: 1 for job in told if told[job] == 3}, ())
    expected = {
        (("abort" if job in failing else "commit") if is_store else "release", job)
        for job, is_store in kinds.items()
    }
    assert len(home.calls) == 40
    assert set(home.calls) == expected
    assert len(books) == 0
