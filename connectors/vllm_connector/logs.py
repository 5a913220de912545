"""What kvtier says must stand in the engine's log, where vLLM shows the lines of its own loggers only."""

import logging

NAMES = ("kvtier", "kvtier_connectors")


def join_engine_log() -> None:
    """Give our loggers the handlers and the level of vLLM's. Whoever has configured logging keeps it."""
    engine = logging.getLogger("vllm")
    for name in NAMES:
        logger = logging.getLogger(name)
        if logger.handlers or not engine.handlers:
            continue
        for handler in engine.handlers:
            logger.addHandler(handler)
        logger.setLevel(engine.level)
        logger.propagate = engine.propagate
