"""How many events of each caller are kept, and how long: one value for who writes, reads and sweeps."""

from __future__ import annotations

from taskgate.ports.event_outbox import KEPT_EVENTS, KEPT_EVENTS_MS


class KeptEvents:
    """Changed on the event loop and read by the committing thread too, one number at a time."""

    __slots__ = ("for_ms", "most")

    def __init__(self, most: int = KEPT_EVENTS, for_ms: int = KEPT_EVENTS_MS) -> None:
        self.most = most
        self.for_ms = for_ms
