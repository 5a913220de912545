"""The scheduler's side against a truthful fake of the client."""

import pytest
from fake_scheduler import PLANS, Scheduler, hashes, keys
from kvtier_connectors.common import guard
from vllm.v1.kv_offload.base import OffloadPolicy, ReqContext


@pytest.fixture(autouse=True)
def no_fault():
    """A guarded fault would hide behind its fallback."""
    guard.faults.clear()
    yield
    assert guard.fault_count() == 0


def test_store_then_hit_then_load():
    s, blocks = Scheduler(), hashes(8)
    context = s.request()
    assert s.hits(context, blocks) == 0
    assert len(s.store(context, blocks).keys_to_store) == 4
    assert s.hits(context, blocks) == 4
    spec = s.manager.prepare_load(keys(0, blocks), context)
    assert not spec.void
    assert (spec.counts, spec.boot_id, spec.chunk_bytes) == ((4,), 77, (256,))
    assert spec.offsets.tolist() == [0, 4096, 8192, 12288]
    job = s.start(spec, is_store=False)
    assert s.manager.jobs_out == 1
    s.manager.settle({job: 1}, ())
    assert len(s.space.leases) == 1
    s.manager.settle({job: 1}, ())
    assert s.space.leases == {}
    assert s.manager.jobs_out == 0


def test_one_lookup_per_question_however_many_keys():
    s, blocks = Scheduler(), hashes(400)
    context = s.request()
    s.store(context, blocks)
    s.space.lookups = 0
    assert s.hits(context, blocks) == 200
    assert s.space.lookups == 1


def test_only_what_is_missing_is_stored():
    s, blocks = Scheduler(), hashes(8)
    context = s.request()
    s.store(context, blocks[:4])
    output = s.manager.prepare_store(keys(0, blocks), context)
    assert output.keys_to_store == keys(0, blocks)[2:]
    assert output.store_spec.counts == (2,)
    again = s.manager.prepare_store(keys(0, blocks), context)
    assert again.keys_to_store == []


def test_a_failed_store_leaves_nothing():
    s, blocks = Scheduler(), hashes(4)
    s.store(s.request(), blocks, failed=True)
    assert s.space.log == [("abort", 1)]
    assert s.space.present == {}
    assert s.space.pending == set()


def test_a_chunk_with_a_hole_is_not_committed():
    s, blocks = Scheduler(), hashes(4)
    context = s.request()
    output = s.manager.prepare_store(keys(0, blocks), context)
    job = s.start(output.store_spec, is_store=True, blocks=[3])
    assert output.store_spec.void
    s.manager.settle({job: 2}, ())
    assert s.space.log == [("abort", 1)]


def test_a_lease_that_grants_less_loads_the_leading_part_and_the_request_is_not_asked_again():
    s, blocks = Scheduler(), hashes(8)
    context = s.request()
    s.store(context, blocks)
    assert s.hits(context, blocks) == 4
    del s.space.present[blocks[5]]
    spec = s.manager.prepare_load(keys(0, blocks), context)
    assert not spec.void
    assert (spec.counts, len(spec.slots)) == ((4,), 2)
    job = s.start(spec, is_store=False)
    s.manager.settle({job: 2}, {job})
    assert s.space.leases == {}
    assert s.hits(context, blocks) == 0
    other = s.request("other")
    assert s.hits(other, blocks) == 2


def test_a_lease_that_grants_nothing_or_less_of_one_of_two_groups_fails_the_job():
    s, blocks = Scheduler(), hashes(8)
    context = s.request()
    assert s.manager.prepare_load(keys(0, blocks), context).void
    s, context = Scheduler(PLANS), s.request()
    s.manager.on_new_request(context)
    for group in (0, 1):
        output = s.manager.prepare_store(keys(group, blocks), context)
        s.manager.settle({s.start(output.store_spec, is_store=True): 2}, ())
    del s.spaces[1].present[blocks[5]]
    spec = s.manager.prepare_load(keys(0, blocks) + keys(1, blocks), context)
    assert spec.void
    s.manager.settle({s.start(spec, is_store=False): 2}, ())
    assert [space.leases for space in s.spaces] == [{}, {}]


def test_where_a_load_comes_from_is_told_by_key_and_counted():
    s, blocks = Scheduler(), hashes(8)
    context = s.request()
    s.store(context, blocks)
    s.space.stored = {blocks[5], blocks[7]}
    wanted = keys(0, blocks)
    job = s.start(s.manager.prepare_load(wanted, context), is_store=False)
    sources = [s.manager.get_load_source(key, context).value for key in wanted]
    assert sources == ["host", "host", "disk", "disk"]
    s.manager.settle({job: 2}, ())
    stats = s.manager.get_stats().reduce()
    assert {name: stats[name] for name in stats if "loaded" in name} == {
        "vllm:kvtier_loaded_chunks": 4,
        "vllm:kvtier_loaded_bytes:('host',)": 512,
        "vllm:kvtier_loaded_bytes:('storage',)": 512,
    }
    s.manager.on_request_finished(context)
    assert s.manager.get_load_source(wanted[3], context).value == "host"


def test_waiting_requests_are_prefetched_a_few_at_a_time():
    s, blocks = Scheduler(), hashes(8)
    s.store(s.request(), blocks)
    s.manager.prefetch("r", blocks)
    assert s.space.prefetched == []  # all of it is in DRAM
    s.space.stored = {blocks[5]}
    contexts = [s.request(f"r{number}") for number in range(3)]
    for context in contexts:
        s.manager.prefetch(context.req_id, blocks)
    assert s.space.prefetched == [[blocks[1], blocks[3], blocks[5], blocks[7]]] * 2
    s.manager.prepare_load(keys(0, blocks), contexts[0])  # its turn has come
    s.manager.prefetch("r2", blocks)
    assert len(s.space.prefetched) == 3
    for context in contexts:
        s.manager.on_request_finished(context)
    assert s.manager._prefetched == set()


def test_a_worker_that_cannot_copy_ends_hits_and_stores():
    s, blocks = Scheduler(), hashes(8)
    context = s.request()
    s.store(context, blocks[:4])
    output = s.manager.prepare_store(keys(0, blocks[4:]), context)
    job = s.start(output.store_spec, is_store=True)
    s.manager.settle({job: 2}, {job}, absent=True)
    assert s.hits(s.request("other"), blocks) == 0
    assert s.manager.prepare_store(keys(0, blocks), context).keys_to_store == []
    assert s.space.leases == {}


def test_a_failed_load_is_remembered_until_the_request_ends():
    s, blocks = Scheduler(), hashes(4)
    context = s.request()
    s.store(context, blocks)
    job = s.start(s.manager.prepare_load(keys(0, blocks), context), is_store=False)
    s.manager.settle({job: 2}, {job})
    assert s.hits(context, blocks) == 0
    s.manager.on_request_finished(context)
    assert s.hits(s.request(), blocks) == 2


def test_what_a_load_lost_is_stored_again_and_what_it_brought_is_not():
    s, blocks = Scheduler(), hashes(8)
    assert s.manager.on_new_request(ReqContext(req_id="whole")).policy is OffloadPolicy.REQUEST_LEVEL
    context = s.request()
    s.store(context, blocks)
    job = s.start(s.manager.prepare_load(keys(0, blocks), context), is_store=False)
    del s.space.present[blocks[5]]
    blocks += hashes(2, start=100)
    # Still under way, or in order: only what lies behind it is new.
    assert s.manager.prepare_store(keys(0, blocks), context).keys_to_store == keys(0, blocks)[4:]
    s.manager.settle({job: 2}, {job})
    assert s.store(context, blocks).keys_to_store == keys(0, blocks)[2:3]
    assert s.hits(s.request("next"), blocks) == 4
    s.manager.on_request_finished(context)
    assert s.manager._loaded == {}


def test_a_load_that_fails_after_its_request_ended_leaves_no_memory():
    s, blocks = Scheduler(), hashes(4)
    context = s.request()
    s.store(context, blocks)
    job = s.start(s.manager.prepare_load(keys(0, blocks), context), is_store=False)
    s.manager.on_request_finished(context)
    assert len(s.space.leases) == 1
    s.manager.settle({job: 2}, {job})
    assert s.space.leases == {}
    assert s.manager._bad == set()
    assert s.manager._views == {}


def test_daemon_lost_between_lookup_and_lease():
    s, blocks = Scheduler(), hashes(4)
    context = s.request()
    s.store(context, blocks)
    s.space.lost = True
    assert s.manager.prepare_load(keys(0, blocks), context).void
    assert s.manager.prepare_store(keys(0, hashes(4, 50)), context).keys_to_store == []
    assert s.hits(context, blocks) == 0


def test_two_groups_have_leases_of_their_own():
    s, blocks = Scheduler(PLANS), hashes(4)
    context = s.request()
    both = keys(0, blocks) + keys(1, blocks)
    output = s.manager.prepare_store(both, context)
    assert output.keys_to_store == both
    assert output.store_spec.counts == (2, 2)
    job = s.start(output.store_spec, is_store=True)
    s.manager.settle({job: 2}, ())
    spec = s.manager.prepare_load(keys(0, blocks) + keys(1, blocks)[1:], context)
    assert spec.counts == (2, 1)
    s.manager.settle({s.start(spec, is_store=False): 2}, ())
    assert [space.leases for space in s.spaces] == [{}, {}]


def test_the_second_group_failing_gives_the_first_ones_slots_back():
    s, blocks = Scheduler(PLANS), hashes(4)
    context = s.request()
    s.spaces[1].lost = True
    assert s.manager.prepare_store(keys(0, blocks) + keys(1, blocks), context).keys_to_store == []
    assert s.spaces[0].log == [("abort", 1)]


def test_groups_of_two_daemon_lives_are_not_mixed():
    s, blocks = Scheduler(PLANS), hashes(4)
    context = s.request()
    s.spaces[1].boot_id = 78
    output = s.manager.prepare_store(keys(0, blocks) + keys(1, blocks), context)
    assert output.store_spec.void
    s.manager.settle({s.start(output.store_spec, is_store=True): 2}, ())
    assert [space.leases for space in s.spaces] == [{}, {}]
    assert s.spaces[0].present == {}


def test_a_full_tier_stores_what_fits():
    s, blocks = Scheduler(), hashes(8)
    s.space.capacity = 3
    assert s.store(s.request(), blocks).keys_to_store == keys(0, blocks)[:3]


def test_reset_makes_everything_a_miss_and_late_jobs_settle():
    s, blocks = Scheduler(), hashes(8)
    context = s.request()
    s.store(context, blocks[:4])
    load = s.start(s.manager.prepare_load(keys(0, blocks[:4]), context), is_store=False)
    store = s.start(s.manager.prepare_store(keys(0, blocks[4:]), context).store_spec, is_store=True)
    s.manager.reset_cache()
    assert s.space.cleared == 1
    assert s.hits(context, blocks) == 0
    assert len(s.space.leases) == 2
    # The request is computed anew, and stored as a whole.
    assert s.manager.prepare_store(keys(0, blocks[:4]), context).keys_to_store == keys(0, blocks[:4])
    s.manager.settle({load: 2, store: 2}, {load})
    s.manager.bind_jobs({}, {})
    assert s.space.leases == {}


def test_a_reset_that_the_daemon_has_not_confirmed_blocks_lookup_and_store():
    s, blocks = Scheduler(), hashes(4)
    context = s.request()
    s.store(context, blocks)
    s.space.clear_fails = True
    s.manager.reset_cache()
    assert s.hits(context, blocks) == 0
    assert s.manager.prepare_store(keys(0, hashes(4, 50)), context).keys_to_store == []
    s.space.clear_fails = False
    assert s.hits(context, blocks) == 0
    assert s.space.cleared == 1
    assert len(s.manager.prepare_store(keys(0, hashes(4, 50)), context).keys_to_store) == 2


def test_what_the_engine_holds_itself_is_touched_once():
    s, blocks = Scheduler(), hashes(8)
    context = s.request()
    for _ in range(3):
        s.hits(context, blocks, computed=70)
    assert s.space.touched == [blocks[1], blocks[3]]


def test_the_beginning_of_a_prefix_is_renewed_when_more_is_stored_behind_it():
    s, blocks = Scheduler(PLANS), hashes(8)
    context = s.request()
    s.hits(context, blocks)
    s.manager.prepare_store(keys(0, blocks[:4]) + keys(1, blocks[:4]), context)
    assert s.spaces[0].renewed == []  # nothing lies before it
    blocks += hashes(2, start=100)  # vLLM's list grows with the answer
    s.manager.prepare_store(keys(0, blocks[4:]) + keys(1, blocks[4:]), context)
    assert s.spaces[0].renewed == [[blocks[1], blocks[3]]]
    s.manager.prepare_store(keys(0, blocks[4:]), context)
    assert len(s.spaces[0].renewed) == 1  # nothing new was granted
    before = blocks[1::2]
    blocks += hashes(2, start=200)
    s.manager.prepare_store(keys(0, blocks), context)  # offered whole, and only its end is granted
    assert s.spaces[0].renewed[1:] == [before]
    assert s.spaces[1].renewed == []  # of a window the end is needed
    assert s.spaces[0].touched == []  # and nobody has used anything
    s.manager.on_request_finished(context)
    assert s.manager._hashes == {}


def test_counters_say_what_happened():
    s, blocks = Scheduler(), hashes(8)
    context = s.request()
    s.store(context, blocks)
    s.hits(context, blocks)
    s.manager.on_request_finished(context)
    counts = s.manager.get_stats().reduce()
    assert counts["vllm:kvtier_attached"] == 1
    assert counts["vllm:kvtier_stored_chunks"] == 4
    assert counts["vllm:kvtier_hit_chunks"] == 4
    assert s.manager.get_stats() is None


def test_nothing_is_asked_of_an_engine_that_cannot_cache():
    s = Scheduler()
    s.spaces = []
    context = s.request()
    assert s.hits(context, hashes(4)) == 0
    assert s.manager.prepare_store(keys(0, hashes(4)), context).keys_to_store == []
