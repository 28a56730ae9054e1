"""Event streams that keep open pages current: one stream per page, which names the topics that changed.

A frame contains topics, never data: the page then fetches itself again with its own session, so a stream cannot disclose anything.
Frames are numbered within one run of the gateway. A client that reconnects with a number of an earlier run, or an older number,
immediately receives a frame with all topics.

Changes are collected for a short time and sent together, so a burst costs each open page one frame. The first change after a quiet
period is sent immediately; during continuous changes the interval between frames grows with the number of pages that have to be
rendered, so that all open pages together cause a bounded load. An idle stream costs one timer every 15 seconds.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.governance.approver import Approver
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import EventAnswer
from taskgate.gateway.events import (
    ApprovalOpened,
    ApprovalOver,
    DefinitionChanged,
    EventHub,
    ListsChanged,
    ProgressMade,
    QuestionsChanged,
    ScopesChanged,
    TaskChanged,
    TaskExpired,
    TemporaryScopesChanged,
)

GATHER_S: Final = 0.02
DISTANCE_S: Final = 0.05
"""Minimum time between frames for each open page: together they are rendered at most 20 times per second."""
PING_S: Final = 15.0
MAX_STREAMS: Final = 1_000
ALL_PRINCIPALS: Final = ""
"""A change that concerns all principals."""


class LiveUpdates:
    def __init__(self, events: EventHub) -> None:
        self._run = secrets.token_hex(4)
        self._number = 0
        self._changed: set[tuple[Topic, str]] = set()
        self._last: frozenset[tuple[Topic, str]] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._last_sent = -1e9
        self._waiting: set[asyncio.Future[None]] = set()
        self._open = 0
        self._closing = False
        events.subscribe(TaskChanged, lambda event: self.changed(Topic.TASKS, event.task.principal))
        events.subscribe(TaskExpired, lambda event: self.changed(Topic.TASKS, event.task.principal))
        events.subscribe(ProgressMade, lambda event: self.changed(Topic.TASKS, event.principal))
        events.subscribe(ApprovalOpened, lambda event: self.changed(Topic.INBOX, event.approval.binding.principal))
        events.subscribe(ApprovalOver, lambda event: self.changed(Topic.INBOX, event.principal))
        events.subscribe(QuestionsChanged, lambda event: self.changed(Topic.INBOX, event.caller))
        events.subscribe(DefinitionChanged, lambda _: self.changed(Topic.DEFINITIONS))
        events.subscribe(ListsChanged, lambda _: self.changed(Topic.SERVERS))
        events.subscribe(ScopesChanged, lambda _: self.changed(Topic.SCOPES))
        events.subscribe(TemporaryScopesChanged, lambda _: self.changed(Topic.SCOPES))

    @property
    def version(self) -> str:
        """Changes with the data that pages show. A stream that continues from an older version starts with a frame."""
        return f"{self._run}-{self._number}"

    @property
    def open_streams(self) -> int:
        return self._open

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of streams is open."""
        return self.open_streams >= MAX_STREAMS

    def changed(self, topic: Topic, principal: str = ALL_PRINCIPALS) -> None:
        """Announce a change to data of this principal. Without open streams this only increments a counter."""
        if not self._open:
            self._number += 1
            return
        self._changed.add((topic, principal))
        if self._timer is None:
            wait = max(GATHER_S, self._last_sent + self._distance_s() - clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._flush)

    def _distance_s(self) -> float:
        """The time between frames during continuous changes."""
        return DISTANCE_S * self._open

    def _flush(self) -> None:
        self._timer = None
        self._last_sent = clock.monotonic()
        self._number += 1
        self._last, self._changed = frozenset(self._changed), set()
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def end_all(self) -> None:
        """End every stream when the gateway shuts down; its page reconnects."""
        self._closing = True
        self._wake()

    def stream(self, last_id: str | None, user: Approver) -> EventAnswer:
        """The frames of one open page: topics of changes that this person may see. The stream counts as open from now on."""
        self._open += 1
        return EventAnswer(self._frames(last_id, user), self._over)

    def _over(self) -> None:
        self._open -= 1

    async def _frames(self, last_id: str | None, user: Approver) -> AsyncGenerator[bytes]:
        seen = self._number
        yield b"retry: 1000\n\n"
        if last_id is not None and last_id != f"{self._run}-{seen}":
            yield self._frame(seen, sorted(Topic))
        while not self._closing:
            # Compared before each wait, because a change may be announced while a frame is being sent.
            if self._number != seen:
                topics = set(Topic) if self._number != seen + 1 else self._visible(user)
                seen = self._number
                if topics:
                    yield self._frame(seen, sorted(topics))
            elif not await self._next():
                yield b":ping\n\n"

    def _visible(self, user: Approver) -> set[Topic]:
        """The topics of the last changes that this person may see."""
        return {
            topic for topic, principal in self._last if principal == ALL_PRINCIPALS or user.may_see_data_of(principal)
        }

    def _frame(self, number: int, topics: list[Topic]) -> bytes:
        data = msgspec.json.encode({"topics": topics})
        return b"id: %s-%d\nevent: change\ndata: %s\n\n" % (self._run.encode(), number, data)

    async def _next(self) -> bool:
        """Wait for the next frame; False when a ping is due."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(PING_S):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True
