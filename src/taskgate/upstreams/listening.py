"""Hearing of changes on behalf of all callers: the one `subscriptions/listen` of a stateless link, or `resources/subscribe`.

A listen request cannot be changed once open: when the set of watched resources changes, a new one is opened and the old one
closed. It comes back by itself after a break; nothing is replayed in this generation, so a break is reported as "everything may
have changed".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from typing import Any

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.questions.question import Answer, Question, not_supported
from taskgate.core.wire import Raw
from taskgate.ports.upstream import (
    LISTING_PROFILE,
    ErrorReply,
    Link,
    LinkKey,
    Listener,
    RelayedError,
    Reply,
    UpstreamCall,
    own_call,
)
from taskgate.upstreams.stateless_link import StatelessLink

_FOREVER_S = 365 * 24 * 3600.0
_PAUSE_S = 1.0
_PATIENCE_S = 5.0
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
        """Follow these resources from now on; returns when the server has said that it heard, or took too long to."""
        if uris != self._uris:
            self._uris = uris
            await self._heard_of(self._restart())

    def stop(self) -> None:
        """The link is gone."""
        self._newest += 1
        self._acknowledge(self._newest)
        if self._running is not None:
            self._running.cancel()

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

    def _listen_request(self, number: int) -> UpstreamCall:
        return UpstreamCall(
            "subscriptions/listen",
            {"notifications": wire.raw(self._filter())},
            LISTING_PROFILE,
            _FOREVER_S,
            lambda method, params: self._heard(number, method, params),
            _refuse,
            long_lived=True,
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
        self.stop()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)


class WatchedResources:
    """Resources followed for callers who cannot subscribe themselves: counted, and taken along to the next link in their place.

    Each process of a server knows only its own resources, so its place is its link's key; over HTTP one place (None) serves all.
    """

    def __init__(self, listener: Listener, timeout_s: float) -> None:
        self._listener = listener
        self._timeout_s = timeout_s
        self._uris: defaultdict[LinkKey | None, Counter[str]] = defaultdict(Counter)
        self._listens: dict[Link, Listening] = {}
        self._again: set[asyncio.Task[None]] = set()

    def arrived(self, link: Link, place: LinkKey | None, *, follows: bool) -> None:
        """A link was opened. Every stateless one hears of lists; one that `follows` takes up the resources of its place."""
        uris = frozenset(self._uris[place]) if follows and place in self._uris else frozenset()
        if isinstance(link, StatelessLink):
            self._listens[link] = Listening(link, self._listener, uris)
            self._listens[link].start()
        elif uris:
            task = asyncio.get_running_loop().create_task(self._subscribe_again(link, uris))
            self._again.add(task)
            task.add_done_callback(self._again.discard)

    async def _subscribe_again(self, link: Link, uris: frozenset[str]) -> None:
        for uri in sorted(uris):
            with contextlib.suppress(TaskgateError):
                await self._say(link, "resources/subscribe", uri)

    def follows(self, place: LinkKey | None) -> bool:
        """Whether a resource is followed there."""
        return bool(self._uris.get(place))

    def gone(self, link: Link) -> None:
        listening = self._listens.pop(link, None)
        if listening is not None:
            listening.stop()

    async def watch(self, link: Link, place: LinkKey | None, uri: str) -> None:
        followed = self._uris[place]
        followed[uri] += 1
        if followed[uri] > 1:
            return
        reply = await self._follow(link, place, "resources/subscribe", uri)
        if isinstance(reply, ErrorReply):
            followed.pop(uri, None)
            raise RelayedError(reply.raw, reply.code)

    async def unwatch(self, link: Link | None, place: LinkKey | None, uri: str) -> None:
        """Without a link there is nobody to tell: the next one is only told what is still followed."""
        followed = self._uris[place]
        followed[uri] -= 1
        if followed[uri] <= 0:
            del followed[uri]
            if link is not None:
                await self._follow(link, place, "resources/unsubscribe", uri)
        if not followed:
            del self._uris[place]

    async def _follow(self, link: Link, place: LinkKey | None, method: str, uri: str) -> Reply | None:
        listening = self._listens.get(link)
        if listening is None:
            return await self._say(link, method, uri)
        await listening.follow(frozenset(self._uris[place]))
        return None

    async def _say(self, link: Link, method: str, uri: str) -> Reply:
        return await link.request(own_call(method, {"uri": wire.raw(uri)}, LISTING_PROFILE, self._timeout_s))

    async def close(self) -> None:
        for task in self._again:
            task.cancel()
        await asyncio.gather(*self._again, *(one.close() for one in self._listens.values()), return_exceptions=True)


async def _refuse(question: Question) -> Answer:
    return not_supported(question.method)
