"""The one `subscriptions/listen` that a stateless server gets from us, on behalf of all callers.

A listen request cannot be changed once open: when the set of watched resources changes, a new one is opened and the old one
closed. It comes back by itself after a break; nothing is replayed in this generation, so a break is reported as "everything may
have changed".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import UpstreamError
from taskgate.core.questions import Answer, Question, not_supported
from taskgate.core.wire import Raw
from taskgate.ports.upstream import CallerFace, ErrorReply, Listener, RelayedError, UpstreamRequest
from taskgate.upstreams.stateless_link import StatelessLink

_FOREVER_S = 365 * 24 * 3600.0
_PAUSE_S = 1.0
_PATIENCE_S = 5.0
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_LISTS = (("tools", "toolsListChanged"), ("prompts", "promptsListChanged"), ("resources", "resourcesListChanged"))


class Listening:
    def __init__(self, link: StatelessLink, listener: Listener) -> None:
        self._link = link
        self._listener = listener
        self._uris: Counter[str] = Counter()
        self._running: asyncio.Task[None] | None = None
        self._newest = 0
        self._acknowledged = 0
        self._news = asyncio.Event()

    def start(self) -> None:
        if self._filter():
            self._restart()

    async def watch(self, uri: str) -> None:
        """Follow one more resource; when this returns the server has said that it heard, or took too long to."""
        self._uris[uri] += 1
        if self._uris[uri] == 1:
            await self._heard_of(self._restart())

    async def unwatch(self, uri: str) -> None:
        if self._uris[uri] > 0:
            self._uris[uri] -= 1
            if self._uris[uri] == 0:
                del self._uris[uri]
                self._restart()

    async def _heard_of(self, number: int) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while self._acknowledged < number:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return

    def _filter(self) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        for capability, name in _LISTS:
            declared = self._link.capabilities.get(capability)
            if isinstance(declared, dict) and declared.get("listChanged") is True:
                wanted[name] = True
        if self._uris:
            wanted["resourceSubscriptions"] = sorted(self._uris)
        return wanted

    def _restart(self) -> int:
        self._newest += 1
        self._running = asyncio.get_running_loop().create_task(self._follow(self._newest, self._running))
        return self._newest

    async def _follow(self, number: int, previous: asyncio.Task[None] | None) -> None:
        """Listen anew; the listen before this one stays open until the server has acknowledged it."""
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
            await self._heard_of(number)
            previous.cancel()
            await asyncio.gather(previous, return_exceptions=True)

    def _listen_request(self, number: int) -> UpstreamRequest:
        return UpstreamRequest(
            "subscriptions/listen",
            {"notifications": wire.raw(self._filter())},
            CallerFace({}),
            _FOREVER_S,
            lambda method, params: self._heard(number, method, params),
            _refuse,
        )

    def _heard(self, number: int, method: str, params: Raw | None) -> None:
        if method == _ACKNOWLEDGED:
            self._acknowledge(number)
        elif number >= self._acknowledged:
            # For a moment two listens are open; only the newer one is heard, so nothing is told twice.
            self._listener.on_notification(self._link, method, params)

    def _acknowledge(self, number: int) -> None:
        self._acknowledged = max(self._acknowledged, number)
        self._news.set()

    async def close(self) -> None:
        self._newest += 1
        self._acknowledge(self._newest)
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


class SharedSubscriptions:
    """The same for a stateful server: `resources/subscribe` on the listening link, counted."""

    def __init__(self) -> None:
        self._uris: Counter[str] = Counter()

    async def watch(self, link: Any, uri: str, timeout_s: float) -> None:
        self._uris[uri] += 1
        if self._uris[uri] == 1:
            await self._say(link, "resources/subscribe", uri, timeout_s)

    async def unwatch(self, link: Any, uri: str, timeout_s: float) -> None:
        if self._uris[uri] > 0:
            self._uris[uri] -= 1
            if self._uris[uri] == 0:
                del self._uris[uri]
                await self._say(link, "resources/unsubscribe", uri, timeout_s)

    async def _say(self, link: Any, method: str, uri: str, timeout_s: float) -> None:
        request = UpstreamRequest(method, {"uri": wire.raw(uri)}, CallerFace({}), timeout_s, _ignore, _refuse)
        reply = await link.request(request)
        if isinstance(reply, ErrorReply):
            self._uris.pop(uri, None)
            raise RelayedError(reply.raw, reply.code)


def _ignore(_method: str, _params: Raw | None) -> None:
    return None


async def _refuse(question: Question) -> Answer:
    return not_supported(question.method)
