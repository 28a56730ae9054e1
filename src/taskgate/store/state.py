"""What the transactions and readers of one open store share in memory."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Final, TypeVar

from taskgate.core.governance.grants import Grant
from taskgate.store.cpu_meter import CpuMeter
from taskgate.store.history_state import HistoryState

L = TypeVar("L")

KEPT_EVENTS: Final = 1_000
KEPT_EVENTS_MS: Final = 30 * 60_000


class RestoreState:
    """Whether the open database is treated as restored, until that has been handled.

    If it is, tasks that are stored as waiting may have run since the backup, and grants may have been revoked. `release` then
    releases the lock that keeps other gateways from starting.
    """

    def __init__(self, is_restored: bool, release: Callable[[], None] | None = None) -> None:
        self.is_restored = is_restored
        self.release = release or (lambda: None)

    def declare(self) -> None:
        self.is_restored = True

    def settle(self) -> None:
        self.is_restored = False
        self.release()


class StoreState:
    """How many events are retained, whether history is written, and what was read or is not written yet.

    Changed on the event loop and read by the committing thread; each change is a single assignment.
    """

    __slots__ = (
        "deletion",
        "events_for_ms",
        "history",
        "known_grants",
        "known_revisions",
        "max_events",
        "restore",
        "waiting",
    )

    def __init__(self, restore: RestoreState | None = None) -> None:
        self.history = HistoryState()
        self.deletion = CpuMeter()
        """The CPU time of retention."""
        self.restore = restore if restore is not None else RestoreState(False)
        self.known_grants: tuple[Grant, ...] = ()
        """The valid grants as last read. Where other gateways can change them, each intent reads them again."""
        self.known_revisions: dict[str, int] = {}
        """The revisions at which the cached copies of records were read, by topic. An intent with an outdated copy is refused."""
        self.waiting: MutableMapping[tuple[type, str], Any] = {}
        """The operations of class `Latest` that are not committed yet, by class and key."""
        self.keep_events(KEPT_EVENTS, KEPT_EVENTS_MS)

    def keep_events(self, max_events: int, for_ms: int) -> None:
        """Set how many events are retained per caller, and for how long."""
        self.max_events = max_events
        self.events_for_ms = for_ms

    def know_grants(self, grants: tuple[Grant, ...]) -> None:
        self.known_grants = grants

    def now_known(self, topic: str, revision: int) -> None:
        """Record the revision at which the cached copy of this topic was read."""
        self.known_revisions[topic] = revision

    def waiting_for(self, kind: type[L], key: str) -> L | None:
        """Return the operation of this class and key that is not committed yet."""
        found: L | None = self.waiting.get((kind, key))
        return found
