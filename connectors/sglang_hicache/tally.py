"""What a backend has done: counters for people and tests, and the samples that SGLang's metrics drain."""

import threading
from collections import Counter
from typing import Any

GIB = 1 << 30
SAMPLES_MAX = 4096  # between two drains; SGLang drains every few seconds where its metrics are on


class Tally:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._samples: dict[str, list[tuple[int, float]]] = {"load": [], "store": []}

    def add(self, **counts: int) -> None:
        """Add to counters."""
        with self._lock:
            self._counts.update(counts)

    def moved(self, direction: str, pages: int, page_bytes: int, seconds: float) -> None:
        """One get or set that has moved pages."""
        with self._lock:
            self._counts.update({f"{direction}_pages": pages, f"{direction}_bytes": pages * page_bytes})
            samples = self._samples[direction]
            if len(samples) < SAMPLES_MAX:
                samples.append((pages, pages * page_bytes / GIB / max(seconds, 1e-9)))

    def counts(self) -> dict[str, int]:
        """All counters so far."""
        with self._lock:
            return dict(self._counts)

    def drain(self, metrics: Any) -> Any:
        """Put the samples since the last drain into an SGLang StorageMetrics and return it."""
        with self._lock:
            samples, self._samples = self._samples, {"load": [], "store": []}
        metrics.prefetch_pgs.extend(pages for pages, _ in samples["load"])
        metrics.prefetch_bandwidth.extend(speed for _, speed in samples["load"])
        metrics.backup_pgs.extend(pages for pages, _ in samples["store"])
        metrics.backup_bandwidth.extend(speed for _, speed in samples["store"])
        return metrics
