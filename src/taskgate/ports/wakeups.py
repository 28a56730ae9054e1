"""Hints from other gateways on the same store that something changed. They only say "look": the truth is read from the store.

A hint may be lost, so whoever waits looks by itself now and then: `wait` gives up after a while and says so.
"""

from __future__ import annotations

from typing import Final, Protocol

TASKS: Final = "tasks"
GRANTS: Final = "grants"
APPROVALS: Final = "approvals"
SESSIONS: Final = "sessions"
DEAD: Final = "dead"
"""Another gateway has died: its tasks can be claimed."""
POLL_S: Final = 2.0


class Wakeups(Protocol):
    async def wait(self, topic: str, timeout_s: float) -> frozenset[str] | None:
        """The names that other gateways announced under this topic since it was last asked for; None when nothing came in
        time, or too much: then look at everything. One waiter for each topic.
        """
        ...
