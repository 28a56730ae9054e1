"""Resources that the gateway follows on behalf of callers, by `resources/subscribe` or as part of the link's listen request."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.ports.client_profile import LISTING_PROFILE
from taskgate.ports.link import Link, LinkKey, Listener
from taskgate.ports.upstream_call import own_call
from taskgate.ports.upstream_replies import ErrorReply, RelayedError, Reply
from taskgate.upstreams.listening import Listening
from taskgate.upstreams.stateless_link import StatelessLink


class WatchedResources:
    """Followed resources with their number of followers, which are subscribed again on the next link of their place.

    Each process of a server has its own resources, so its place is its link's key; over HTTP one place (None) serves all.
    """

    def __init__(self, listener: Listener, timeout_s: float) -> None:
        self._listener = listener
        self._timeout_s = timeout_s
        self._uris: defaultdict[LinkKey | None, Counter[str]] = defaultdict(Counter)
        self._listens: dict[Link, Listening] = {}
        self._again: set[asyncio.Task[None]] = set()

    def arrived(self, link: Link, place: LinkKey | None, *, follows: bool) -> None:
        """Register a new link. Stateless links receive list changes; with `follows` it also follows the resources of its place."""
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
                await self._request(link, "resources/subscribe", uri)

    def follows(self, place: LinkKey | None) -> bool:
        """Return whether a resource is followed in this place."""
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
        """Stop following. Without a link nothing is sent: the next one subscribes to what is still followed."""
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
            return await self._request(link, method, uri)
        await listening.follow(frozenset(self._uris[place]))
        return None

    async def _request(self, link: Link, method: str, uri: str) -> Reply:
        return await link.request(own_call(method, {"uri": wire.raw(uri)}, LISTING_PROFILE, self._timeout_s))

    async def close(self) -> None:
        for task in self._again:
            task.cancel()
        await asyncio.gather(*self._again, *(one.close() for one in self._listens.values()), return_exceptions=True)
