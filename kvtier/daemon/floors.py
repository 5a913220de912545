"""Which namespace has its floor now: the configuration's or an operator's, while the namespace is in use.

A namespace never ends: of a model that was updated, or an engine that is gone, nobody says so. Its floor
would be held for ever, and its successor's would not fit beside it. So a floor lapses when nothing was leased
or stored for `idle_s`, and is there again with the next lease or store; one that does not fit is tried again.
"""

from dataclasses import dataclass
from typing import Any

from kvtier import logs
from kvtier.clock import Clock
from kvtier.daemon.names import shown
from kvtier.errors import InvalidArgument
from kvtier.floors import Floors
from kvtier.io.native import Store


@dataclass(slots=True)
class _State:
    id: bytes
    wanted: int
    uses: int  # chunks leased, missed and stored so far
    used_s: float
    label: str = ""
    by_operator: bool = False  # then for this daemon's time
    refused: bool = False  # the last try did not fit


class FloorKeeper:
    """Used by one thread, the daemon's event loop."""

    def __init__(self, store: Store, floors: Floors, clock: Clock, idle_s: float) -> None:
        """idle_s: 0 for floors that never lapse."""
        self._store = store
        self._floors = floors
        self._clock = clock
        self._idle_s = idle_s
        self._log = logs.get("floors")
        # Of an earlier daemon: what it said holds until the namespace is opened.
        self._states = {row["index"]: self._state(row, row["floor"]) for row in store.namespaces()}

    def open(self, id: bytes, index: int, label: str) -> None:
        """It is opened, or has its label now: the configuration says what its floor is, unless an operator
        has.
        """
        row = next(row for row in self._store.namespaces() if row["index"] == index)
        former = self._states.get(index)
        if former is not None and former.id == id and former.by_operator:
            former.label = label
            return
        self._states[index] = self._state(row, self._floors.of(id, label), label)
        self._apply(row, self._states[index])

    def set(self, index: int, floor_bytes: int) -> None:
        """An operator says; InvalidArgument when it does not fit."""
        try:
            self._store.set_floor(index, floor_bytes)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        row = next(row for row in self._store.namespaces() if row["index"] == index)
        self._states[index] = self._state(row, floor_bytes, self._states[index].label)
        self._states[index].by_operator = True

    def look(self) -> None:
        """What was used since the last look, and what follows. Lapsed ones first: they make room."""
        now_s = self._clock.now_s()
        rows = self._store.namespaces()
        for row in rows:
            state = self._states.get(row["index"])
            if state is not None and state.uses != (uses := _uses(row)):
                state.uses, state.used_s = uses, now_s
        for lapsed in (True, False):
            for row in rows:
                state = self._states.get(row["index"])
                if state is not None and self._lapsed(state) == lapsed:
                    self._apply(row, state)

    def _state(self, row: dict[str, Any], wanted: int, label: str = "") -> _State:
        return _State(row["id"], wanted, _uses(row), self._clock.now_s(), label)

    def _lapsed(self, state: _State) -> bool:
        return self._idle_s > 0 and self._clock.now_s() - state.used_s >= self._idle_s

    def _apply(self, row: dict[str, Any], state: _State) -> None:
        floor_bytes = 0 if self._lapsed(state) else state.wanted
        if row["floor"] == floor_bytes:
            return
        named = {"namespace": row["id"].hex(), "label": shown(state.label)}
        try:
            self._store.set_floor(row["index"], floor_bytes)
        except ValueError as error:
            self._store.set_floor(row["index"], 0)
            if not state.refused:
                self._log.warning("a namespace has no floor", reason=str(error), **named)
            state.refused = True
        else:
            state.refused = False
            if self._lapsed(state):
                self._log.info("a floor has lapsed: nobody used its namespace", **named)


def _uses(row: dict[str, Any]) -> int:
    return int(row["hits"] + row["misses"] + row["stores"])
