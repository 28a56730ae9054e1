"""What other gateways announced, handed from the listening thread to whoever waits on the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

MAX_NAMES: Final = 10_000


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Wakeups:
    """Implements `ports.replicas.Wakeups`. Names are only hints to look: when there are too many, all of them are dropped for one
    hint to look at everything."""

    def __init__(self) -> None:
        self._loop = _running_loop()
        self._told: dict[str, set[str]] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self._missed: set[str] = set()

    def heard(self, topic: str, names: list[str]) -> None:
        """Called by any thread. Before anybody waits there is nobody to tell: who begins to wait has read everything."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, topic, names)

    def _tell(self, topic: str, names: list[str]) -> None:
        for one in [topic] if topic else list(self._waiting):
            told = self._told.setdefault(one, set())
            told.update(names)
            if not topic or len(told) > MAX_NAMES:
                told.clear()
                self._missed.add(one)
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
        names = frozenset(self._told.pop(topic, ()))
        if topic in self._missed:
            self._missed.discard(topic)
            return None
        return names
