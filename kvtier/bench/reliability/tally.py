"""What one engine process has seen; plain values, sent to the parent whenever it asks."""

from dataclasses import asdict, dataclass
from typing import Final

PROMISED_MS: Final = 50.0
HUNG_MS: Final = 5 * PROMISED_MS
"""A call that waited so long was not bounded by its deadline."""


@dataclass(slots=True)
class Tally:
    """Counts since the process began."""

    requests: int = 0
    failed: int = 0  # ended by an exception that is not one of kvtier's, so an engine would have seen it
    loaded: int = 0  # chunks, each byte compared
    wrong: int = 0  # of these, with at least one wrong byte
    lost: int = 0  # leased, but the copy said that they had changed or did not come
    stored: int = 0
    losses: int = 0  # of the session
    calls: int = 0
    hung: int = 0
    longest_ms: float = 0.0  # of a call, without what its thread waited for a core
    longest_call: str = ""
    longest_wall_ms: float = 0.0  # of a call, with that
    first_hit_s: float = 0.0  # time.monotonic() of the first hit since it was last asked to look; 0: none yet
    why: str = ""  # it failed first

    def add(self, other: "Tally") -> None:
        """Another process's, or an earlier one's."""
        if other.longest_ms > self.longest_ms:
            self.longest_call = other.longest_call
        for name, value in asdict(other).items():
            mine = getattr(self, name)
            if name.startswith("longest"):
                setattr(self, name, self.longest_call if isinstance(value, str) else max(mine, value))
            elif name != "first_hit_s":
                setattr(self, name, mine or value if isinstance(value, str) else mine + value)
