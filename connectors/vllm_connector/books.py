"""The scheduler's books of leases: which job holds which, until every worker has reported.

A lease goes back exactly once, and never while a worker may still be copying: neither when the request ends,
nor when it is aborted, nor when the cache is reset. vLLM's own books forget jobs at a reset; these do not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from kvtier import SlotLease


class LeaseHome(Protocol):
    """The part of a namespace that takes leases back. All calls are posted: they wait for nobody."""

    def commit_slots(self, lease: SlotLease) -> bool:
        """Written chunks become readable."""

    def abort_slots(self, lease: SlotLease) -> None:
        """Reserved slots become free."""

    def release_slots(self, lease: SlotLease) -> None:
        """Pinned slots become evictable."""


@dataclass(slots=True)
class Ticket:
    """The leases of one job, one per KV group that it touches."""

    number: int
    request_id: str
    is_store: bool
    leases: list[tuple[LeaseHome, SlotLease]]
    chunks: int
    failed: bool = False
    tier_bytes: Mapping[str, int] = field(default_factory=dict)  # of a load
    workers_pending: int = 0


@dataclass
class Outcome:
    """What jobs that ended meant, for the counters and for the memory of failed requests."""

    stored_chunks: int = 0
    loaded_chunks: int = 0
    loaded_bytes: Counter[str] = field(default_factory=Counter)  # by tier
    failed_stores: int = 0
    failed_loads: int = 0
    failed_load_requests: list[str] = field(default_factory=list)


class Books:
    """Used by the scheduler's thread only."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._numbers = count(1)
        self._unbound: dict[int, Ticket] = {}  # by ticket number; bound at the end of the scheduler's step
        self._jobs: dict[int, Ticket] = {}  # by the framework's job id

    def __len__(self) -> int:
        """Jobs whose leases are out."""
        return len(self._unbound) + len(self._jobs)

    def open(
        self,
        request_id: str,
        *,
        is_store: bool,
        leases: list[tuple[LeaseHome, SlotLease]],
        failed: bool = False,
        tier_bytes: Mapping[str, int] | None = None,
    ) -> Ticket:
        """Enter the leases of a job that the framework is about to make. failed: it will copy nothing."""
        chunks = sum(len(lease) for _, lease in leases)
        ticket = Ticket(next(self._numbers), request_id, is_store, leases, chunks, failed, tier_bytes or {})
        self._unbound[ticket.number] = ticket
        return ticket

    def bind(self, job: int, number: int) -> Ticket | None:
        """The framework gave the ticket's job this id and sends it to all workers."""
        ticket = self._unbound.pop(number, None)
        if ticket is not None:
            ticket.workers_pending = self._workers
            self._jobs[job] = ticket
        return ticket

    def drop_unbound(self) -> int:
        """Give back what no job was made for (the framework failed in between). Returns how many."""
        dropped = list(self._unbound.values())
        self._unbound.clear()
        for ticket in dropped:
            ticket.failed = True
            _give_back(ticket)
        return len(dropped)

    def settle(self, completed: Mapping[int, int], failed: Iterable[int]) -> Outcome:
        """Workers' reports of one step: {job: how many finished it}, and jobs that failed somewhere."""
        outcome = Outcome()
        for job in failed:
            if (ticket := self._jobs.get(job)) is not None:
                ticket.failed = True
        for job, workers in completed.items():
            ticket = self._jobs.get(job)
            if ticket is None:
                continue
            ticket.workers_pending -= workers
            if ticket.workers_pending > 0:
                continue
            del self._jobs[job]
            _account(ticket, outcome)
            _give_back(ticket)
        return outcome


def _account(ticket: Ticket, outcome: Outcome) -> None:
    if ticket.is_store:
        outcome.stored_chunks += 0 if ticket.failed else ticket.chunks
        outcome.failed_stores += ticket.failed
    else:
        outcome.loaded_chunks += 0 if ticket.failed else ticket.chunks
        outcome.loaded_bytes.update({} if ticket.failed else ticket.tier_bytes)
        outcome.failed_loads += ticket.failed
        if ticket.failed:
            outcome.failed_load_requests.append(ticket.request_id)


def _give_back(ticket: Ticket) -> None:
    for home, lease in ticket.leases:
        if not ticket.is_store:
            home.release_slots(lease)
        elif ticket.failed:
            home.abort_slots(lease)
        else:
            home.commit_slots(lease)
