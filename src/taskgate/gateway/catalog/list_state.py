"""The state of one server's lists: what was fetched, when it is fetched again, and which callers wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import TaskgateError
from taskgate.gateway.catalog.offer import Offer

FIRST_LIST_WAIT_S: Final = 8.0
"""How long a list request waits for a server without known lists, counted from the first fetch attempt."""
BRIEF_WAIT_S: Final = 0.25
"""How long a request waits for a refresh, counted from its start."""
NAME_WAIT_S: Final = 2.0
"""How long a request for an unlisted name waits for a refresh."""
RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 60.0


class ListState(msgspec.Struct):
    offer: Offer | None = None
    failure: TaskgateError | None = None
    failures: int = 0
    """Consecutive failures."""
    retry_at: float = 0.0
    expires: float = 0.0
    fetched: float = float("-inf")
    """When the last fetch ended, successfully or not."""
    named: float = float("-inf")
    """Time of the last fetch caused by an unlisted name."""
    stale: bool = False
    connecting: bool = False
    """Whether a fetch waits for its connection: that connection being opened must not cause another fetch."""
    must_announce: bool = False
    """A list request was answered without these lists: when they arrive, callers must be notified."""
    unchanged: int = 0
    """Consecutive fetches that found no difference."""
    announced: set[EntryKind] = msgspec.field(default_factory=set)
    unpublished: set[EntryKind] = msgspec.field(default_factory=set)
    """Lists that the server announced as changed and that were not announced to other gateways yet."""
    fetch: asyncio.Task[None] | None = None
    began: float = 0.0

    @property
    def fetching(self) -> bool:
        return self.fetch is not None and not self.fetch.done()

    def due(self, now: float) -> bool:
        if self.fetching or now < self.retry_at:
            return False
        return self.offer is None or self.stale or bool(self.offer.failed) or now > self.expires

    def wait_s(self, now: float, *, listing: bool = False, naming: bool = False) -> float:
        """Return how much longer a request waits for the fetch in progress."""
        if (listing or naming) and self.offer is None and self.failures == 0:
            return self.began + FIRST_LIST_WAIT_S - now
        return self.began + (NAME_WAIT_S if naming else BRIEF_WAIT_S) - now

    def needs_fetch_for_name(self, now: float, min_s: float) -> bool:
        """Return whether a request for an unlisted name starts a fetch, or waits for the one in progress."""
        if self.fetching:
            return True
        if self.offer is not None and now - self.named <= min_s:
            return False
        self.named = now
        return True

    def restored(self, offer: Offer) -> None:
        """Publish lists stored by the last run; they are due to be fetched at once."""
        self.offer = offer

    def outdated(self) -> None:
        self.stale = True

    def require_announcement(self) -> None:
        self.must_announce = True

    def changes_announced(self, kinds: Collection[EntryKind], *, elsewhere: bool) -> bool:
        """Record that lists changed, announced here or `elsewhere`, or that the server may have been replaced. Return whether to
        fetch them."""
        self.announced.update(kinds)
        self.unpublished.update(() if elsewhere else kinds)
        if self.connecting or self.stale:
            return False
        self.stale, self.retry_at = True, 0.0
        return not self.fetching

    def fetched_by(self, fetch: asyncio.Task[None], now: float) -> asyncio.Task[None]:
        self.fetch, self.began = fetch, now
        return fetch

    def give_up_fetch(self) -> asyncio.Task[None] | None:
        """Detach the fetch in progress; its starter awaits its end."""
        fetch, self.fetch, self.retry_at = self.fetch, None, 0.0
        return fetch

    def fetch_begins(self) -> None:
        self.stale = False

    @contextmanager
    def while_connecting(self) -> Iterator[None]:
        self.connecting = True
        try:
            yield
        finally:
            self.connecting = False

    def answered(self, now: float) -> None:
        """Note the end of a fetch, successful or not."""
        self.fetched = now

    def failed(self, reason: TaskgateError, now: float) -> None:
        """Note a failure and schedule a retry with growing delay."""
        self.failure = reason
        self.failures += 1
        self.retry_at = now + min(LONGEST_RETRY_S, RETRY_S * 2 ** min(self.failures - 1, 10))

    def compared(self, offer: Offer, is_same: bool) -> None:
        """Note whether fetched lists are the known ones. Lists that are not complete prove nothing."""
        if not is_same:
            self.unchanged = 0
        elif offer.complete:
            self.unchanged += 1

    def arrived(self, offer: Offer, expires: float, now: float) -> frozenset[EntryKind]:
        """Note received lists. Return those that the server had announced as changed."""
        self.offer, self.expires, self.must_announce = offer, expires, False
        if offer.complete and offer.failed:
            self.failed(next(iter(offer.failed.values())), now)
        elif offer.complete:
            self.failure, self.failures, self.retry_at = None, 0, 0.0
        announced = frozenset(self.announced)
        self.announced.clear()
        return announced

    def take_unpublished(self) -> frozenset[EntryKind]:
        """Return the announced changes to publish to other gateways."""
        unpublished = frozenset(self.unpublished)
        self.unpublished.clear()
        return unpublished
