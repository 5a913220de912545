"""Structured logs on stderr: readable lines on a terminal, one JSON object a line elsewhere.

Never logged: tokens, keys' contents, payload.
"""

import logging
import sys
from typing import Any, Literal, cast

import structlog
from structlog.typing import EventDict

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "human", "json"]


def configure(level: Level = "info", form: Format = "auto") -> None:
    """Set up the whole process. Call once, before the first line is logged."""
    human = sys.stderr.isatty() if form == "auto" else form == "human"
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if human
        else structlog.processors.JSONRenderer(sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if human else [structlog.processors.format_exc_info]),
            *([] if human else [_head_first]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


def _head_first(_: Any, __: str, line: EventDict) -> EventDict:
    """Time, level, event, then what the line is about: also without a tool it can be read."""
    head = ("timestamp", "level", "event")
    return {name: line[name] for name in head if name in line} | dict(line)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines carry `part=name`."""
    return cast(structlog.typing.FilteringBoundLogger, structlog.get_logger(part=name))
