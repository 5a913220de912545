"""Conversations cut from the agent trace."""

from kvtier.demo import trace
from kvtier.demo.conversations import SHRINK, conversations

BOUNDS = {"prompt_tokens_min": 6000, "prompt_tokens_max": 16000, "token_ids": range(3, 2048)}


def _leading(one, other):
    return next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def test_turns_grow_and_share_what_they_share_in_the_trace():
    sessions = trace.load()
    talks = conversations(sessions, count=3, turns=5, **BOUNDS)
    assert [len(talk.prompts) for talk in talks] == [5, 5, 5]
    for talk in talks:
        lengths = [len(prompt) for prompt in talk.prompts]
        assert lengths == sorted(set(lengths))
        assert BOUNDS["prompt_tokens_min"] <= lengths[-1] <= BOUNDS["prompt_tokens_max"]
        assert all(token in BOUNDS["token_ids"] for token in talk.prompts[-1])
        session = next(session for session in sessions if session.id == talk.id)
        requests = {request.prompt_tokens // SHRINK: request for request in reversed(session.requests)}
        for before, after in zip(talk.prompts, talk.prompts[1:], strict=False):
            ids, next_ids = (requests[len(prompt)].block_ids.tolist() for prompt in (before, after))
            blocks = _leading(ids, next_ids)
            assert blocks > 0
            shared = _leading(before, after)
            assert shared >= blocks * session.block_tokens // SHRINK
    assert _leading(talks[0].prompts[0], talks[1].prompts[0]) < 8  # other conversations share nothing


def test_the_same_in_every_process_and_none_that_does_not_fit():
    sessions = trace.load()
    once, again = (conversations(sessions, count=1, turns=3, **BOUNDS) for _ in range(2))
    assert once == again
    assert conversations(sessions, count=3, turns=3, **(BOUNDS | {"prompt_tokens_max": 10})) == []
