"""Measuring: percentiles, and rounds that take turns so that a noisy minute hits all sides alike."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

K = TypeVar("K")

__all__ = ["in_turns", "median", "medians", "p50_us"]


def p50_us(
    call: Callable[[], object],
    count: int,
    pause_s: float = 0.0,
    prepare: Callable[[], object] | None = None,
) -> float:
    """Median time of `call` in microseconds; before each, not measured: `pause_s` of sleep, `prepare`."""
    samples_ns = []
    for _ in range(count):
        if pause_s:
            time.sleep(pause_s)
        if prepare is not None:
            prepare()
        began_ns = time.perf_counter_ns()
        call()
        samples_ns.append(time.perf_counter_ns() - began_ns)
    return median(samples_ns) / 1e3


def in_turns(measures: Mapping[K, Callable[[], float]], rounds: int) -> dict[K, list[float]]:
    """Every measure once a round; the values of each by name, in order of the rounds."""
    values: dict[K, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            values[name].append(measure())
    return values


def medians(values: Mapping[K, list[float]]) -> dict[K, float]:
    """The median of each."""
    return {name: median(samples) for name, samples in values.items()}
