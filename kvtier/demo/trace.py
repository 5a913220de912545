"""Reads the agent trace: 60 anonymised Claude Code sessions (format: benchmarks/traces/README.md)."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtier.errors import InvalidArgument

# A link beside this file, so that the trace is found from a checkout and from a wheel alike.
WEKA_60 = Path(__file__).parent / "traces" / "weka_cc_sessions_60.jsonl.gz"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request to a model."""

    at_s: float  # since its session's start
    prompt_tokens: int
    answer_tokens: int
    block_ids: npt.NDArray[
        np.int64
    ]  # prefix-chained, one per full block of the prompt, local to `Session.space`


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """One conversation (or one subagent of one): its requests follow each other in time."""

    id: str
    space: str  # sessions of one space share block ids: a conversation and its subagents
    block_tokens: int
    shared_prefix: str  # sessions with an equal one share their leading blocks
    shared_blocks: int  # how many
    requests: tuple[Request, ...]


def load(path: Path = WEKA_60) -> list[Session]:
    """Every session of the file, subagents as sessions of their own. InvalidArgument: it is no trace."""
    sessions: list[Session] = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                sessions.extend(_sessions(json.loads(line)))
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise InvalidArgument(f"trace {path}: {type(error).__name__}: {error}") from None
    return sessions


def _sessions(record: dict[str, Any]) -> Iterator[Session]:
    tool_tokens, system_tokens, block_tokens = int(record["tool"]), int(record["sys"]), int(record["bs"])
    nested = [(record["id"], 0.0, record["r"])]
    while nested:
        id, start_s, entries = nested.pop(0)
        own = [entry for entry in entries if "sub" not in entry]
        for number, entry in enumerate(entry for entry in entries if "sub" in entry):
            nested.append((f"{id}/{number}", start_s + float(entry["t"]), entry["sub"]))
        main = id == record["id"]  # a subagent has another system prompt than its parent
        yield Session(
            id=id,
            space=record["id"],
            block_tokens=block_tokens,
            shared_prefix=f"{tool_tokens}+{system_tokens}" if main else "",
            shared_blocks=(tool_tokens + system_tokens) // block_tokens if main else 0,
            requests=tuple(_request(entry, start_s) for entry in own),
        )


def _request(entry: dict[str, Any], start_s: float) -> Request:
    ranges = entry["h"]
    runs = [np.arange(a, a + n, dtype=np.int64) for a, n in zip(ranges[::2], ranges[1::2], strict=True)]
    return Request(
        at_s=start_s + float(entry["t"]),
        prompt_tokens=int(entry["i"]),
        answer_tokens=int(entry["o"]),
        block_ids=np.concatenate(runs) if runs else np.zeros(0, np.int64),
    )
