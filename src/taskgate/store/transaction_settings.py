"""What every transaction reads and a reload may change: the retention of events, and the state of history."""

from __future__ import annotations

from taskgate.ports.event_outbox import KEPT_EVENTS, KEPT_EVENTS_MS
from taskgate.store.cpu_meter import CpuMeter
from taskgate.store.history_state import HistoryState


class TransactionSettings:
    """How many events are retained per caller and for how long, and whether history is written.

    Changed on the event loop and read by the committing thread; each change is a single assignment.
    """

    __slots__ = ("deletion", "events_for_ms", "history", "max_events")

    def __init__(self, max_events: int = KEPT_EVENTS, events_for_ms: int = KEPT_EVENTS_MS) -> None:
        self.history = HistoryState()
        self.deletion = CpuMeter()
        """The CPU time of retention."""
        self.keep_events(max_events, events_for_ms)

    def keep_events(self, max_events: int, for_ms: int) -> None:
        self.max_events = max_events
        self.events_for_ms = for_ms
