"""Fetch a server's lists again when another gateway reports that they changed, at a limited rate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from taskgate import clock
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.token_bucket import BucketLevel, TokenBucket, take

FETCH_RATE: Final = TokenBucket(per_second=0.5, burst=5)
"""Rate of fetches caused by other gateways: a server may return a different list to each of them every time."""


class ListHints:
    """Fetches at once, or as soon as the rate limit allows."""

    def __init__(self, changed: Callable[[str, Collection[EntryKind]], None]) -> None:
        self._changed = changed
        self._levels: dict[str, BucketLevel] = {}
        self._waiting: dict[str, set[EntryKind]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def add(self, server: str, kinds: Collection[EntryKind]) -> None:
        if server in self._waiting:
            self._waiting[server].update(kinds)
            return
        self._levels[server], wait_s = take(FETCH_RATE, self._levels.get(server), clock.monotonic())
        if not wait_s:
            self._changed(server, kinds)
            return
        self._waiting[server] = set(kinds)
        self._timers[server] = asyncio.get_running_loop().call_later(wait_s, self._turn, server)

    def _turn(self, server: str) -> None:
        del self._timers[server]
        self.add(server, self._waiting.pop(server))

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
