"""Whether the store writes history, and which rows could not be written."""

from __future__ import annotations

import itertools
import secrets
from typing import NamedTuple

from taskgate.core.history.row import SEQUENCE_BITS, numbered


class Loss(NamedTuple):
    """Rows of history that could not be written."""

    first_ms: int
    last_ms: int
    rows: int

    def plus(self, other: Loss) -> Loss:
        return Loss(min(self.first_ms, other.first_ms), max(self.last_ms, other.last_ms), self.rows + other.rows)


class HistoryState:
    """Whether tasks leave rows of history, and which rows could not be written.

    Used on the event loop and by the committing thread; what both change is a single assignment or an atomic counter.
    """

    __slots__ = ("_lost", "_sequence", "is_failing", "on")

    def __init__(self) -> None:
        self.on = True
        self.is_failing = False
        """Whether an insert failed since the last `switch`. Until the next one, rows are counted as lost without trying."""
        self._sequence = itertools.count(secrets.randbits(SEQUENCE_BITS))
        self._lost: Loss | None = None

    def switch(self, *, on: bool) -> None:
        """Set whether rows are written, and try again if they could not be written. Called every second."""
        self.on, self.is_failing = on, False

    def fail(self) -> None:
        self.is_failing = True

    def next_number(self, ended_ms: int) -> int:
        """The number of a new row that ended at this time."""
        return numbered(ended_ms, next(self._sequence))

    def lose(self, loss: Loss) -> None:
        """Note rows that could not be written."""
        self._lost = loss if self._lost is None else self._lost.plus(loss)

    def take_loss(self) -> Loss | None:
        lost, self._lost = self._lost, None
        return lost
