"""The replay, cut short: it passes on right bytes, and a single wrong byte makes it fail."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from harness import PATIENT_MS, until

from kvtier import Client
from kvtier.demo import trace
from kvtier.demo.daemon import LocalDaemon, temporary_daemon
from kvtier.demo.replay import play
from kvtier.demo.replay_worker import NAMESPACE
from kvtier.demo.schedule import Turn, schedule

CHUNK = 4096


def turns() -> Iterator[Turn]:
    return islice(schedule(trace.load()[:8], chunk_blocks=8, gap_s=5.0), 120)


def test_a_short_replay_is_right_and_hits() -> None:
    with temporary_daemon("16MiB") as daemon:
        replay = play(daemon, turns(), chunk_bytes=CHUNK)
    assert replay.faults == []
    assert replay.requests == 120
    assert replay.total.loaded + replay.total.stored + replay.total.present + replay.total.pending > 0
    assert replay.hit_rate > 0.5
    assert replay.total.foreign > 0  # chunks crossed from one process to the other
    assert replay.stats is not None
    assert replay.stats.counters["stores"] == replay.total.stored


def test_what_dram_evicts_comes_back_from_storage(tmp_path: Path) -> None:
    with temporary_daemon("4MiB", "--storage", str(tmp_path)) as daemon:
        first = play(daemon, turns(), chunk_bytes=4 * CHUNK)
        assert first.stats is not None
        assert first.stats.counters["evictions"] > 0

        def counters() -> dict[str, int]:
            return daemon.stats().counters

        until(lambda: counters()["storage_demoted_chunks"] >= first.total.stored // 2, "half is on storage")
        again = play(daemon, turns(), chunk_bytes=4 * CHUNK)
        assert counters()["storage_promoted_chunks"] > 0
    assert first.faults == again.faults == []
    assert again.total.below > 0
    assert again.hit_rate > first.hit_rate


def planted(daemon: LocalDaemon) -> Iterator[Turn]:
    """The turns, and in the middle one flipped bit in a chunk that the next turn reads."""
    played = list(turns())
    yield from played
    with Client.connect(daemon.address, deadline_ms=PATIENT_MS) as client:
        ns = client.namespace(NAMESPACE, CHUNK)
        lease = ns.lease_slots(played[-1].keys)
        assert len(lease) > 0
        ns.slot_view(lease, 0, writable=True)[CHUNK // 2] ^= 1
        ns.release_slots(lease)
    yield played[-1]


def test_one_flipped_bit_fails_the_replay() -> None:
    with temporary_daemon("64MiB") as daemon:
        replay = play(daemon, planted(daemon), chunk_bytes=CHUNK)
    assert replay.total.wrong == 1
    assert replay.faults == ["1 chunks with wrong bytes"]
