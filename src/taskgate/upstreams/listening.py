"""The `subscriptions/listen` request of a stateless link, on behalf of all callers.

A listen request cannot be changed: when the set of followed resources changes, a new one is opened and the old one closed. After an
interruption it is sent again. Nothing is replayed in this generation, so an interruption is reported as a change of the lists.
"""

from __future__ import annotations

import asyncio
from typing import Any

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import UpstreamError
from taskgate.core.questions.question import Answer, Question, not_supported
from taskgate.core.wire import Raw
from taskgate.ports.client_profile import LISTING_PROFILE
from taskgate.ports.link import Listener
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_replies import ErrorReply
from taskgate.upstreams.stateless_link import StatelessLink

_FOREVER_S = 365 * 24 * 3600.0
_PAUSE_S = 1.0
_OPEN_TIMEOUT_S = 5.0
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_LISTS = (("tools", "toolsListChanged"), ("prompts", "promptsListChanged"), ("resources", "resourcesListChanged"))


class Listening:
    def __init__(self, link: StatelessLink, listener: Listener, uris: frozenset[str]) -> None:
        self._link = link
        self._listener = listener
        self._uris = uris
        self._running: asyncio.Task[None] | None = None
        self._newest = 0
        self._acknowledged = 0
        self._news = asyncio.Event()

    def start(self) -> None:
        if self._filter():
            self._restart()

    async def follow(self, uris: frozenset[str]) -> None:
        """Follow these resources from now on. Returns when the server has acknowledged it, or after a timeout."""
        if uris != self._uris:
            self._uris = uris
            await self._wait_acknowledged(self._restart())

    def stop(self) -> None:
        """Stop, because the link is lost."""
        self._newest += 1
        self._acknowledge(self._newest)
        if self._running is not None:
            self._running.cancel()

    async def _wait_acknowledged(self, number: int) -> None:
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                while self._acknowledged < number:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return

    def _filter(self) -> dict[str, Any]:
        filters: dict[str, Any] = {}
        for capability, name in _LISTS:
            declared = self._link.capabilities.get(capability)
            if isinstance(declared, dict) and declared.get("listChanged") is True:
                filters[name] = True
        if self._uris:
            filters["resourceSubscriptions"] = sorted(self._uris)
        return filters

    def _restart(self) -> int:
        self._newest += 1
        self._running = asyncio.get_running_loop().create_task(self._follow(self._newest, self._running))
        return self._newest

    async def _follow(self, number: int, previous: asyncio.Task[None] | None) -> None:
        """Send a new listen request. The previous one stays open until the server has acknowledged it."""
        ending = asyncio.get_running_loop().create_task(self._end(number, previous))
        first = True
        try:
            while self._link.alive and self._filter() and number == self._newest:
                if not first:
                    self._listener.on_notification(self._link, "notifications/tools/list_changed", None)
                first = False
                try:
                    reply = await self._link.request(self._listen_request(number))
                except UpstreamError:
                    reply = None
                if isinstance(reply, ErrorReply):
                    return
                await clock.sleep(_PAUSE_S)
        finally:
            self._acknowledge(number)
            await asyncio.gather(ending, return_exceptions=True)

    async def _end(self, number: int, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await self._wait_acknowledged(number)
            previous.cancel()
            await asyncio.gather(previous, return_exceptions=True)

    def _listen_request(self, number: int) -> UpstreamCall:
        return UpstreamCall(
            method="subscriptions/listen",
            params={"notifications": wire.raw(self._filter())},
            profile=LISTING_PROFILE,
            timeout_s=_FOREVER_S,
            on_notification=lambda method, params: self._received(number, method, params),
            on_question=_refuse,
            long_lived=True,
        )

    def _received(self, number: int, method: str, params: Raw | None) -> None:
        if method == _ACKNOWLEDGED:
            self._acknowledge(number)
        elif number >= self._acknowledged:
            # While two listen requests are open, only the newer one is used, so that nothing is delivered twice.
            self._listener.on_notification(self._link, method, params)

    def _acknowledge(self, number: int) -> None:
        self._acknowledged = max(self._acknowledged, number)
        self._news.set()

    async def close(self) -> None:
        self.stop()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)


async def _refuse(question: Question) -> Answer:
    return not_supported(question.method)
