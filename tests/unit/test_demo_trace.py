"""The trace reader and the schedule: order, keys, and what is shared."""

import gzip
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from kvtier.client.backoff import LONGEST_S, Backoff
from kvtier.demo import trace
from kvtier.demo.schedule import keys_of, reusable, schedule
from kvtier.errors import InvalidArgument


@pytest.fixture(scope="module")
def sessions() -> list[trace.Session]:
    return trace.load()


def test_the_whole_trace_is_read(sessions: list[trace.Session]) -> None:
    assert len(sessions) == 71  # 60 conversations, 11 subagents
    assert sum(len(session.requests) for session in sessions) == 4204
    assert sum(len(request.block_ids) for session in sessions for request in session.requests) == 7_531_761


@pytest.mark.parametrize(
    "text", ["", "not json", "{}", '{"id":"a","bs":64,"tool":1,"sys":1,"r":[{"t":0,"h":[1]}]}']
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode())[: None if text else 5])
    with pytest.raises(InvalidArgument, match=r"trace\.jsonl"):
        trace.load(path)


def test_turns_come_in_the_order_of_time(sessions: list[trace.Session]) -> None:
    last_s, count, seen = 0.0, 0, defaultdict(int)
    for turn in schedule(sessions, chunk_blocks=4, gap_s=60.0):
        assert turn.at_s >= last_s
        last_s, count = turn.at_s, count + 1
        seen[turn.session] += 1
        assert turn.keys.shape[1] == 32
    assert count == 4204
    assert sorted(seen.values()) == sorted(len(session.requests) for session in sessions if session.requests)


def test_prefixes_stay_prefixes_and_editions_share_nothing(sessions: list[trace.Session]) -> None:
    one = sessions[0]
    first, second = list(schedule([one], chunk_blocks=4, gap_s=0.0, passes=1))[:2]
    shorter = min(len(first.keys), len(second.keys))
    assert (first.keys[: shorter // 2] == second.keys[: shorter // 2]).all()
    assert reusable(iter([first, second]))[1] > 0
    twice = [turn for turn in schedule([one], chunk_blocks=4, gap_s=0.0, passes=2) if len(turn.keys)]
    editions = {edition: set() for edition in "01"}
    for turn in twice:
        editions[turn.session[0]].update(map(bytes, turn.keys))
    assert len(editions["0"]) == len(editions["1"]) > 0
    assert not editions["0"] & editions["1"]


def test_different_chunks_have_different_keys() -> None:
    keys = keys_of(np.arange(200_000, dtype=np.uint64))
    assert len(np.unique(keys.view("V32"))) == 200_000
    assert len(np.unique(keys[:, :16].copy().view("V16"))) == 200_000


def test_pauses_grow_to_a_bound_and_start_over() -> None:
    backoff = Backoff(random.Random(3))
    pauses = [backoff.next_s() for _ in range(20)]
    assert pauses[0] < 0.1
    assert all(pause <= LONGEST_S for pause in pauses)
    assert min(pauses[-5:]) >= LONGEST_S / 2
    backoff.reset()
    assert backoff.next_s() < 0.1
