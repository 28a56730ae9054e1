"""Announcements between gateways that share a store: the topics, and how to wait for them.

An announcement is only a hint to read the store, which is authoritative. It may be lost, so waiters also read the store
periodically: `wait` returns after a timeout.
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
"""Topics of records that every gateway caches. Each change increments the revision of its topic."""
APPROVALS: Final = "approvals"
SESSIONS: Final = "sessions"
QUESTIONS: Final = "questions"
"""A question was asked, answered, taken or withdrawn."""
LISTS: Final = "lists"
"""The lists of a server changed. A server of the stateful generation notifies only the session it has, and a stdio server only the
gateway that started it. Names are servers, or `list_hint`."""
DEAD: Final = "dead"
"""Another gateway died: its tasks can be claimed."""
MISSED: Final = "missed"
"""The connection to the database was lost, so announcements may have been missed. What can be read from the store is read under the
other topics; this one is for what must be requested or sent again."""
TOPICS: Final = CACHED | {TASKS, APPROVALS, SESSIONS, QUESTIONS, LISTS, DEAD, MISSED}
"""All topics that a gateway can wait for."""
POLL_S: Final = 2.0


def list_hint(server: str, kind: str) -> str:
    """Return the name announced under LISTS for a list that changed."""
    return f"{server}\n{kind}"


def read_list_hint(name: str) -> tuple[str, str]:
    """Return the server and the kind of list; the kind is empty if all lists changed."""
    server, _, kind = name.partition("\n")
    return server, kind


_KEPT_READS: Final = 16


class SeenRevisions(NamedTuple):
    """The revisions of `CACHED` as last read, with the monotonic time. A topic without a row has revision 0."""

    numbers: Mapping[str, int]
    at: float
    earlier: tuple[SeenRevisions, ...] = ()
    """Earlier reads with other revisions, oldest first."""

    def then(self, numbers: Mapping[str, int], at: float) -> SeenRevisions:
        """Return this with the next read. Of reads with the same revisions only the last one is kept."""
        if numbers == self.numbers:
            return SeenRevisions(numbers, at, self.earlier)
        return SeenRevisions(numbers, at, (*self.earlier, SeenRevisions(self.numbers, self.at))[-_KEPT_READS:])

    def current_at(self, loaded: Mapping[str, int]) -> float:
        """Return when copies with these revisions were last known to be current. While a change is being loaded, that is the time
        of the read before it."""
        for reading in (self, *reversed(self.earlier)):
            if all(reading.numbers.get(topic, 0) <= number for topic, number in loaded.items()):
                return reading.at
        return float("-inf")


class Wakeups(Protocol):
    async def wait(self, topic: str, timeout_s: float) -> frozenset[str] | None:
        """Return the names announced under this topic since the last call. None after a timeout, or if there were too many:
        then everything must be read. One waiter per topic.
        """
        ...
