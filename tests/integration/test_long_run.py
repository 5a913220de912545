"""A day of agents: the trace again and again with fresh content; the daemon's memory stays where it was."""

import pytest

from kvtier.demo import trace
from kvtier.demo.daemon import temporary_daemon
from kvtier.demo.replay import play
from kvtier.demo.schedule import schedule

DAY_S = 24 * 3600.0
CHUNK = 4096
CHUNK_BLOCKS = 16  # 1024 tokens a chunk, so that a day takes a minute
DRAM = "32MiB"
GROWTH_MAX = 4 << 20
OWN_MAX = 160 << 20  # Python, gRPC and the daemon's own tables


@pytest.mark.slow
def test_a_day_of_agents_does_not_grow_the_daemon() -> None:
    sessions = trace.load()
    passes = 6
    gap_s = DAY_S / (passes * len(sessions))
    turns = schedule(sessions, chunk_blocks=CHUNK_BLOCKS, gap_s=gap_s, passes=passes, until_s=DAY_S)
    with temporary_daemon(DRAM) as daemon:
        replay = play(daemon, turns, chunk_bytes=CHUNK, sample_every_s=3600.0)
        assert replay.stats is not None
        counters = replay.stats.counters
    print(
        f"{replay.requests:,} requests, {replay.total.loaded:,} chunks verified, "
        f"hit rate {replay.hit_rate:.1%}, {counters['evictions']:,} evictions, {replay.wall_s:.0f} s; "
        "anon MiB: " + " ".join(f"{sample['anon'] / (1 << 20):.1f}" for sample in replay.memory)
    )
    assert replay.faults == []
    assert replay.simulated_s > 0.98 * DAY_S
    assert (
        counters["evictions"] > 10 * counters["data_bytes"] // CHUNK
    )  # the arena was turned over many times
    assert len(replay.memory) >= 24
    # The first hours fill the arena and the allocator's pools; from then on nothing may grow.
    settled = replay.memory[4]["anon"]
    assert max(sample["anon"] for sample in replay.memory[5:]) <= settled + GROWTH_MAX
    for sample in replay.memory:
        assert sample["shmem"] <= counters["data_bytes"] + counters["index_bytes"] + (1 << 20)
        assert sample["anon"] <= OWN_MAX
    assert counters["index_bytes"] <= 96 * counters["slots_max"] + (1 << 20)
