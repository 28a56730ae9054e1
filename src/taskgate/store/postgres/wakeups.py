"""Announcements of other gateways, passed from the listening thread to waiters on the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from taskgate.ports.topics import APPROVALS, LISTS, MISSED, TASKS, TOPICS

MAX_NAMES: Final = 10_000
_NOT_REREAD: Final = frozenset({LISTS, APPROVALS, TASKS})
"""Topics whose lost names are not all found again by reading everything."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Wakeups:
    """Implements `ports.topics.Wakeups`. Names are only hints to read the store: when there are too many, they are replaced by one
    hint to read everything."""

    def __init__(self) -> None:
        self._loop = _running_loop()
        self._names: dict[str, set[str]] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self._missed: set[str] = set()

    def announce(self, topic: str, names: list[str]) -> None:
        """Called by any thread. Announcements before the first wait are dropped: a waiter has read everything when it begins."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, topic, names)

    def _deliver(self, topic: str, names: list[str]) -> None:
        if topic and topic not in TOPICS:
            return  # announced by a gateway of a newer version; nothing here waits for it
        for one in [topic] if topic else [waited for waited in self._waiting if waited != MISSED]:
            names_waiting = self._names.setdefault(one, set())
            names_waiting.update(names)
            if not topic or len(names_waiting) > MAX_NAMES:
                names_waiting.clear()
                self._missed.add(one)
                if topic in _NOT_REREAD:
                    self._event(MISSED).set()
            self._event(one).set()

    def _event(self, topic: str) -> asyncio.Event:
        return self._waiting.setdefault(topic, asyncio.Event())

    async def wait(self, topic: str, timeout_s: float) -> frozenset[str] | None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        event = self._event(topic)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return None
        event.clear()
        names = frozenset(self._names.pop(topic, ()))
        if topic in self._missed:
            self._missed.discard(topic)
            return None
        return names
