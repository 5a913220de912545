"""Scheduler side: what is in the host's tiers, and the leases for what is about to be copied.

    prefetch                         posted: chunks on storage come up while the request waits
    begin_lookup -> lookup*          shared index, no IPC: one native call per request and group
    prepare_load                     one lease per group          } the framework makes a job of it,
    prepare_store                    one reserve per group        } bind_jobs learns its id
    settle                           all workers reported: release, commit or abort (posted)

Runs on the scheduler's thread alone. Everything is guarded: a fault of ours is a miss.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from kvtier_connectors.common.guard import guarded, nothing
from kvtier_connectors.vllm_connector.books import Books, LeaseHome
from kvtier_connectors.vllm_connector.layout import GroupPlan, block_positions
from kvtier_connectors.vllm_connector.lookup import RequestView, chunk_keys, group_suffix
from kvtier_connectors.vllm_connector.sources import Sources
from kvtier_connectors.vllm_connector.tally import Tally
from kvtier_connectors.vllm_connector.transfer import SlotSpec
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadKey,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvtier import Grant, KVTierError, SlotLease

if TYPE_CHECKING:
    from kvtier import Namespace

logger = logging.getLogger(__name__)

_SKIPPED = {Grant.PRESENT: "present", Grant.PENDING: "pending", Grant.NO_SPACE: "no_space"}


def _miss(*_args: Any) -> LookupResult:
    return LookupResult.MISS


def _store_nothing(*_args: Any) -> PrepareStoreOutput:
    return PrepareStoreOutput(keys_to_store=[], store_spec=SlotSpec(void=True), evicted_keys=[])


def _load_nothing(*_args: Any) -> SlotSpec:
    return SlotSpec(void=True)


class KVTierManager(OffloadingManager):
    """The framework's manager over a kvtier client."""

    def __init__(
        self,
        plans: Sequence[GroupPlan],
        open_namespaces: Callable[[Mapping[str, str]], "Sequence[Namespace]"],
        *,
        workers: int,
        prefetch_requests: int,
        attached: Callable[[], bool],
        close: Callable[[], None],
    ) -> None:
        """open_namespaces: kernels of the layers -> one per plan, or none when nothing can be cached. Called
        at the first request: only then vLLM's hash seed and the kernels are known. close: end the session."""
        self._plans = tuple(plans)
        self._groups = {group_suffix(plan): place for place, plan in enumerate(self._plans)}
        self._open = open_namespaces
        self._close = close
        self._namespaces: Sequence[Namespace] = ()
        self._opened = False
        self._kernels: Mapping[str, str] = {}
        self._clear_wanted = False
        self._books = Books(workers)
        self._views: dict[str, RequestView | None] = {}  # live requests; None before the first lookup
        self._hashes: dict[str, Sequence[bytes]] = {}  # their block hashes; vLLM's own lists, which grow
        self._bad: set[str] = set()  # live requests whose load failed: they are recomputed, not asked again
        self._loaded: dict[str, set[OffloadKey]] = {}  # what live requests have loaded, or are loading
        self._touched: set[str] = set()
        self._prefetch_requests = prefetch_requests
        self._prefetched: set[str] = set()  # live requests that have not been loaded since
        self._sources = Sources()
        self._absent = False  # a worker cannot copy: hits would be failed loads, every one
        self._tally = Tally(attached)

    def know_kernels(self, kernels: Mapping[str, str]) -> None:
        """What the workers reported when they were ready: layer name -> the kernels that write its pages."""
        self._kernels = kernels

    # ---- requests ----

    @guarded(lambda *_: RequestOffloadingContext())
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """A request came in. The framework is to offer all its chunks for storing: left to itself it counts
        what a load was begun for as stored, also when the load fails and the engine recomputes it."""
        if not self._opened:
            self._opened = True
            self._namespaces = tuple(self._open(self._kernels))
        self._views[req_context.req_id] = None
        return RequestOffloadingContext(policy=OffloadPolicy.REQUEST_LEVEL)

    @guarded(nothing)
    def on_request_finished(self, req_context: ReqContext) -> None:
        """No more questions for this request; its jobs may still be under way."""
        self._tally.looked_up(self._views.pop(req_context.req_id, None))
        self._hashes.pop(req_context.req_id, None)
        self._bad.discard(req_context.req_id)
        self._loaded.pop(req_context.req_id, None)
        self._touched.discard(req_context.req_id)
        self._prefetched.discard(req_context.req_id)
        self._sources.forget(req_context.req_id)

    def mark_bad(self, request_ids: Collection[str]) -> None:
        """Loads of these failed: they are misses until they end, or the scheduler would try for ever.

        What they did not get is computed, and stored as if it had not been there.
        """
        for request_id in self._views.keys() & set(request_ids):
            self._bad.add(request_id)
            self._loaded.pop(request_id, None)

    # ---- lookup ----

    @guarded(nothing)
    def prefetch(self, request_id: str, block_hashes: Sequence[bytes]) -> None:
        """A request waits in the queue: ask, without waiting, that what it has on storage come up to DRAM.

        For a few requests at once only: what came up too early would be evicted before its turn. Of groups
        with a window nothing is asked for, as only the end of it is needed and which end is not known yet.
        """
        if len(self._prefetched) >= self._prefetch_requests or self._closed() or not self._clean():
            return
        for plan, namespace in zip(self._plans, self._namespaces, strict=True):
            keys = [] if plan.windowed else chunk_keys(plan, block_hashes)
            hit = namespace.lookup_tiers(keys) if keys else None
            if hit is not None and hit.storage_chunks:
                self._prefetched.add(request_id)
                with suppress(KVTierError):
                    namespace.prefetch(keys[: hit.chunks])

    def _closed(self) -> bool:
        """Nothing is cached in this engine."""
        return self._absent or not self._namespaces

    @guarded(nothing)
    def begin_lookup(self, request_id: str, block_hashes: Sequence[bytes], computed_tokens: int) -> None:
        """The scheduler is about to ask for this request's keys: forget older answers."""
        if request_id not in self._views:
            return
        self._hashes[request_id] = block_hashes
        self._tally.looked_up(self._views[request_id])
        self._views[request_id] = None
        if request_id in self._bad or self._closed() or not self._clean():
            return
        self._views[request_id] = RequestView(self._plans, self._namespaces, block_hashes, computed_tokens)
        if computed_tokens and request_id not in self._touched:
            self._touched.add(request_id)
            self._touch_held(block_hashes, computed_tokens)

    def _touch_held(self, block_hashes: Sequence[bytes], computed_tokens: int) -> None:
        """What the engine still holds itself is in use: keep its copies from growing old in the host tier."""
        for plan, namespace in zip(self._plans, self._namespaces, strict=True):
            held = chunk_keys(plan, block_hashes)[: computed_tokens // plan.tokens_per_chunk]
            if held:
                with suppress(KVTierError):
                    namespace.touch(held)

    @guarded(_miss)
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether one chunk is readable now. About a microsecond: the request's view knows."""
        view = self._views.get(req_context.req_id)
        return LookupResult.HIT if view is not None and view.present(key) else LookupResult.MISS

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Where the chunk lay when its load began."""
        on_storage = self._sources.on_storage(req_context.req_id, key)
        return CacheHitSource.DISK if on_storage else CacheHitSource.HOST

    # ---- leases ----

    @guarded(_load_nothing)
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> SlotSpec:
        """Pin these chunks; those on storage are on their way when this returns, and the workers wait for
        each. When not all are there any more, the leading ones are loaded and the rest is recomputed; with
        several groups the job fails, as vLLM has no smaller answer there."""
        counts, leases, pinned = [0] * len(self._plans), [], 0
        self._prefetched.discard(req_context.req_id)
        if req_context.req_id in self._views:
            self._loaded.setdefault(req_context.req_id, set()).update(keys)
        sizes = self._sources.begin(req_context.req_id)
        try:
            for place, hashes in self._by_group(keys):
                lease = self._namespaces[place].lease_slots(hashes)
                leases.append((self._namespaces[place], lease))
                counts[place] = len(hashes)
                pinned += len(lease)
                sizes.add(hashes, lease, self._namespaces[place], self._plans[place])
        except KVTierError as error:
            logger.debug("kvtier: lease for request %s: %s", req_context.req_id, error)
        some = pinned > 0 and len(self._plans) == 1 and not self._plans[0].windowed
        return self._spec(
            req_context.req_id,
            counts,
            leases,
            is_store=False,
            void=pinned != len(keys) and not some,
            tier_bytes=sizes.tier_bytes,
        )

    @guarded(_store_nothing)
    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput:
        """Slots for those chunks that are not there yet and not on their way by another engine."""
        counts, leases, granted = [0] * len(self._plans), [], []
        loaded = self._loaded.get(req_context.req_id, ())
        try:
            if not self._closed() and self._clean():
                for place, hashes in self._by_group([key for key in keys if key not in loaded]):
                    grants = self._namespaces[place].reserve_slots(hashes)
                    leases.append((self._namespaces[place], grants))
                    counts[place] = len(grants)
                    answers = grants.grants.tolist()
                    if len(grants):
                        first = hashes[answers.index(Grant.GRANTED)]
                        self._renew_beginning(place, first, req_context.req_id)
                    suffix = group_suffix(self._plans[place])
                    for key, grant in zip(hashes, answers, strict=True):
                        if grant == Grant.GRANTED:
                            granted.append(OffloadKey(key + suffix))
                        else:
                            self._tally.skipped(_SKIPPED.get(grant, "other"))
        except KVTierError as error:
            logger.debug("kvtier: reserve for request %s: %s", req_context.req_id, error)
            for home, lease in leases:
                home.abort_slots(lease)
            granted = []
        if not granted:
            return _store_nothing()
        spec = self._spec(req_context.req_id, counts, leases, is_store=True, void=False)
        return PrepareStoreOutput(keys_to_store=granted, store_spec=spec, evicted_keys=[])

    def _renew_beginning(self, place: int, first: bytes, request_id: str) -> None:
        """A request is stored in parts, step by step and turn by turn; its end is to be evicted first."""
        plan = self._plans[place]
        if plan.windowed:  # there the end is what a load needs
            return
        prefix = chunk_keys(plan, self._hashes.get(request_id, ()))
        if first in prefix and (beginning := prefix[: prefix.index(first)]):
            self._namespaces[place].renew(beginning)

    def _by_group(self, keys: Collection[OffloadKey]) -> list[tuple[int, list[bytes]]]:
        """Keys of one job by place of their group; the framework gives them group after group, in order."""
        runs = groupby(keys, key=lambda key: key[-4:])
        return [(self._groups[suffix], [key[:-4] for key in run]) for suffix, run in runs]

    def _spec(
        self,
        request_id: str,
        counts: Sequence[int],
        leases: "list[tuple[Namespace, SlotLease]]",
        *,
        is_store: bool,
        void: bool,
        tier_bytes: Mapping[str, int] | None = None,
    ) -> SlotSpec:
        boots = {lease.boot_id for _, lease in leases}
        void = void or len(boots) > 1  # the daemon was restarted between two groups
        homes: list[tuple[LeaseHome, SlotLease]] = list(leases)
        ticket = self._books.open(
            request_id, is_store=is_store, leases=homes, failed=void, tier_bytes=tier_bytes
        )
        if void:
            return SlotSpec(ticket=ticket.number, void=True)
        grants = [lease for _, lease in leases]
        return SlotSpec(
            ticket=ticket.number,
            boot_id=boots.pop() if boots else 0,
            counts=tuple(counts),
            chunk_bytes=tuple(plan.chunk_bytes for plan in self._plans),
            slots=np.concatenate([lease.slots for lease in grants]),
            generations=np.concatenate([lease.generations for lease in grants]),
            offsets=np.concatenate([lease.offsets for lease in grants]),
        )

    # ---- jobs ----

    @guarded(nothing)
    def bind_jobs(self, load_jobs: Mapping[int, Any], store_jobs: Mapping[int, Any]) -> None:
        """The jobs of this step, as they go to the workers. A store with a hole in a chunk is voided."""
        for job, transfer in load_jobs.items():
            self._bind(job, transfer.src_spec, transfer.dst_spec, is_store=False)
        for job, transfer in store_jobs.items():
            self._bind(job, transfer.dst_spec, transfer.src_spec, is_store=True)
        self._books.drop_unbound()

    def _bind(self, job: int, spec: SlotSpec, device: Any, *, is_store: bool) -> None:
        ticket = self._books.bind(job, spec.ticket)
        if ticket is None or spec.void:
            return
        fits = block_positions(
            self._plans, spec.counts, device.group_sizes, device.block_indices, whole_chunks=is_store
        )
        if fits is None:
            spec.void = True
            ticket.failed = True

    @guarded(nothing)
    def settle(self, completed: Mapping[int, int], failed: Collection[int], *, absent: bool = False) -> None:
        """What the workers reported this step. absent: one of them cannot copy, so nothing is cached now."""
        if absent and not self._absent:
            self._absent = True
            logger.warning("kvtier: a worker cannot copy (its log says why); this engine serves without it")
        outcome = self._books.settle(completed, failed)
        self.mark_bad(outcome.failed_load_requests)
        self._tally.settled(outcome)

    @property
    def jobs_out(self) -> int:
        """Jobs whose leases are not given back yet."""
        return len(self._books)

    # ---- reset ----

    @guarded(nothing)
    def reset_cache(self) -> None:
        """Make everything of this model unreadable, for every engine of the host (weights changed).

        Stores under way are dropped by the daemon at their commit. As long as the daemon has not confirmed,
        nothing is looked up and nothing is stored.
        """
        self._views.update(dict.fromkeys(self._views))
        self._loaded.clear()
        self._clear_wanted = bool(self._namespaces)
        self._clean()

    def _clean(self) -> bool:
        """True when no reset is outstanding."""
        if self._clear_wanted and all(namespace.attached for namespace in self._namespaces):
            try:
                for namespace in self._namespaces:
                    namespace.clear()
                self._clear_wanted = False
            except KVTierError as error:
                logger.warning(
                    "kvtier: reset not confirmed by the daemon yet, serving without cache: %s", error
                )
        return not self._clear_wanted

    # ---- the rest of the framework's contract ----

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Nothing is deferred."""

    @guarded(nothing)
    def get_stats(self) -> Any:
        """Counters since the last call, or None."""
        return self._tally.take()

    @guarded(nothing)
    def shutdown(self) -> None:
        """The engine ends: so does the session, and with it every lease."""
        self._close()
