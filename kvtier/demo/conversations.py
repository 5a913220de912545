"""Growing conversations for a tiny model, cut from the agent trace: real sharing, made-up tokens."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvtier.demo.trace import Session

SHRINK = 8  # a block of 64 tokens in the trace becomes one of 8: 100,000 tokens become 12,500


@dataclass(frozen=True)
class Conversation:
    """Turns of one session, in order. Each prompt is the whole context so far, as agents send it."""

    id: str
    prompts: list[list[int]]


def conversations(
    sessions: list[Session],
    *,
    count: int,
    turns: int,
    prompt_tokens_min: int,
    prompt_tokens_max: int,
    token_ids: range,
) -> list[Conversation]:
    """The first `count` sessions whose first `turns` turns end within these bounds, shrunk by `SHRINK`.

    Tokens are drawn from `token_ids` by the trace's block ids: prompts share what they share there.
    """
    found: list[Conversation] = []
    for session in sessions:
        prompts = list(_growing_prompts(session, turns, prompt_tokens_max, token_ids))
        if len(prompts) == turns and len(prompts[-1]) >= prompt_tokens_min:
            found.append(Conversation(session.id, prompts))
        if len(found) == count:
            break
    return found


def _growing_prompts(
    session: Session, turns: int, prompt_tokens_max: int, token_ids: range
) -> Iterator[list[int]]:
    """Prompts of requests longer than all before; the others are retries and side calls."""
    block_tokens = session.block_tokens // SHRINK
    longest = 0
    for request in session.requests:
        tokens = request.prompt_tokens // SHRINK
        if tokens > prompt_tokens_max or turns == 0:
            return
        if tokens <= longest:
            continue
        longest = tokens
        turns -= 1
        prompt: list[int] = []
        for block in request.block_ids.tolist():
            prompt += _draw(f"{session.space}/{block}", block_tokens, token_ids)
        # What does not fill a block in the trace belongs to this turn alone.
        prompt += _draw(f"{session.id}@{request.at_s}", tokens - len(prompt), token_ids)
        yield prompt


def _draw(name: str, count: int, token_ids: range) -> list[int]:
    """`count` token ids, the same for the same name in every process."""
    if count <= 0:
        return []
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    ids: list[int] = np.random.default_rng(seed).integers(token_ids.start, token_ids.stop, count).tolist()
    return ids
