"""The linker's offloads where the shelf fails: what was not taken is waited for by nobody."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kvtier_connectors.sglang_linker.offloads import Offload, Offloads

KEYS = ["00" * 32, "01" * 32]


class Shelf:
    """Everything is there already, but for the first question, which fails."""

    namespace = SimpleNamespace(attached=True)

    def __init__(self) -> None:
        self.asked = 0

    def present(self, keys: Any) -> np.ndarray:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("planted")
        return np.ones(len(KEYS), bool)


def test_one_that_was_not_taken_does_not_stand_before_the_others() -> None:
    offloads = Offloads(Shelf())  # type: ignore[arg-type]
    try:
        with pytest.raises(RuntimeError, match="planted"):
            offloads.give(Offload(KEYS, None))
        for _ in range(2):
            offloads.give(Offload(KEYS, None))
        assert offloads.ended() == 2
        assert offloads.pop()
    finally:
        offloads.close()
