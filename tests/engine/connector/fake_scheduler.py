"""vLLM's framework, as far as it drives a manager."""

from types import SimpleNamespace

from fakes import FakeNamespace
from kvtier_connectors.vllm_connector.layout import GroupPlan
from kvtier_connectors.vllm_connector.manager import KVTierManager
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LookupResult, ReqContext, make_offload_key

PLANS = (GroupPlan(0, 16, 2, 2, 64, 2, False), GroupPlan(1, 16, 2, 2, 32, 2, True))


def hashes(count, start=0):
    return [number.to_bytes(32, "big") for number in range(start, start + count)]


def keys(group, block_hashes):
    """Offload keys of the whole chunks (two blocks each)."""
    return [make_offload_key(h, group) for h in block_hashes[1::2]]


class Scheduler:
    """Drives a manager as vLLM's framework does."""

    def __init__(self, plans=PLANS[:1], workers=2):
        self.spaces = [FakeNamespace() for _ in plans]
        self.plans = plans
        self.manager = KVTierManager(
            plans,
            lambda kernels: self.spaces,
            workers=workers,
            prefetch_requests=2,
            attached=lambda: True,
            close=lambda: None,
        )
        self.jobs = 0

    @property
    def space(self):
        return self.spaces[0]

    def request(self, name="r", block_hashes=()):
        context = ReqContext(req_id=name)
        self.manager.on_new_request(context)
        return context

    def hits(self, context, block_hashes, group=0, computed=0):
        self.manager.begin_lookup(context.req_id, block_hashes, computed)
        count = 0
        for key in keys(group, block_hashes)[computed // 32 :]:
            if self.manager.lookup(key, context) is not LookupResult.HIT:
                break
            count += 1
        return count

    def device(self, counts, blocks=None):
        sizes = blocks or [
            count * plan.blocks_per_chunk for count, plan in zip(counts, self.plans, strict=True)
        ]
        return GPULoadStoreSpec(list(range(sum(sizes))), sizes, [0] * len(sizes))

    def start(self, spec, *, is_store, blocks=None):
        counts = spec.counts or [0] * len(self.plans)
        device = self.device(counts, blocks)
        job, self.jobs = self.jobs, self.jobs + 1
        transfer = SimpleNamespace(
            src_spec=device if is_store else spec, dst_spec=spec if is_store else device
        )
        self.manager.bind_jobs({} if is_store else {job: transfer}, {job: transfer} if is_store else {})
        return job

    def store(self, context, block_hashes, *, failed=False):
        output = self.manager.prepare_store(keys(0, block_hashes), context)
        if output.keys_to_store:
            job = self.start(output.store_spec, is_store=True)
            self.manager.settle({job: 2}, {job} if failed else ())
        return output
