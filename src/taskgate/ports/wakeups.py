"""Hints from other gateways on the same store that something changed. They only say "look": the truth is read from the store.

A hint may be lost, so whoever waits looks by itself now and then: `wait` gives up after a while and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

TASKS: Final = "tasks"
GRANTS: Final = "grants"
PINS: Final = "pins"
SCOPES: Final = "scopes"
SERVERS: Final = "servers"
TOKENS: Final = "tokens"
CACHED: Final = frozenset({GRANTS, PINS, SCOPES, SERVERS, TOKENS})
"""What every gateway keeps a copy of in memory. Each change of one of them counts its revision up."""
APPROVALS: Final = "approvals"
SESSIONS: Final = "sessions"
QUESTIONS: Final = "questions"
"""A question was asked, answered, taken or withdrawn: what waits at other gateways is read again."""
LISTS: Final = "lists"
"""A server offers something else than before: a server of the stateful generation tells only the conversation that it has."""
DEAD: Final = "dead"
"""Another gateway has died: its tasks can be claimed."""
POLL_S: Final = 2.0


class SeenRevisions(NamedTuple):
    """The revisions of `CACHED` as they were last read, and when, by the monotonic clock; a topic without a row is at 0."""

    numbers: Mapping[str, int]
    at: float


class Wakeups(Protocol):
    async def wait(self, topic: str, timeout_s: float) -> frozenset[str] | None:
        """The names that other gateways announced under this topic since it was last asked for; None when nothing came in
        time, or too much: then look at everything. One waiter for each topic.
        """
        ...
