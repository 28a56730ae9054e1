"""What each upstream offers: its lists, fetched whole, kept while it is away, fetched anew when it says they changed.

One failing upstream never hides the others: its last good lists are served, and a failure is remembered for a moment so that
listing does not wait for it again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.catalog.entry import Entry, EntryKind, read_entries
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.questions import Answer, Question, not_supported
from taskgate.core.scoping.subset import Reason
from taskgate.core.wire import Members, Raw
from taskgate.gateway.events.events import ListsChanged
from taskgate.gateway.events.hub import EventHub
from taskgate.gateway.live import Live
from taskgate.gateway.plan import Limits
from taskgate.ports.upstream import LISTING_FACE, ErrorReply, Link, Upstream, UpstreamRequest
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

FAILURE_MEMORY_S: Final = 2.0
COALESCE_S: Final = 0.05
LEAST_TTL_S: Final = 5.0

METHODS: Final[Mapping[EntryKind, tuple[str, str, str]]] = {
    EntryKind.TOOL: ("tools", "tools/list", "tools"),
    EntryKind.PROMPT: ("prompts", "prompts/list", "prompts"),
    EntryKind.RESOURCE: ("resources", "resources/list", "resources"),
    EntryKind.TEMPLATE: ("resources", "resources/templates/list", "resourceTemplates"),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """Everything one upstream offers, with what it says of itself."""

    entries: Mapping[EntryKind, tuple[Entry, ...]]
    capabilities: Mapping[str, Any]
    instructions: str | None = None
    expires: float | None = None
    notes: tuple[str, ...] = ()


Inspect = Callable[[str, Offer], None]
"""Looks at every list that arrives, before anybody sees it."""


def listed_only(servers: Mapping[str, Upstream], limits: Limits) -> Catalogs:
    """For commands that show the operator what servers list, without serving it to anybody."""
    return Catalogs(Live(servers), limits, _not_inspected, Quarantine(), Metrics(), EventHub())


def _not_inspected(_server: str, _offer: Offer) -> None:
    return None


class Quarantine:
    """Tools, as (server, tool) pairs, whose definition must be accepted by a person before callers see them."""

    def __init__(self) -> None:
        self.tools: frozenset[tuple[str, str]] = frozenset()
        self.revision = 0

    def replace(self, tools: frozenset[tuple[str, str]]) -> None:
        if tools != self.tools:
            self.tools = tools
            self.revision += 1


@dataclass(slots=True)
class Failure:
    until: float
    reason: TaskgateError


class Catalogs:
    def __init__(
        self,
        upstreams: Live[Mapping[str, Upstream]],
        limits: Limits,
        inspect: Inspect,
        quarantine: Quarantine,
        metrics: Metrics,
        events: EventHub,
    ) -> None:
        self._inspect = inspect
        self._quarantine = quarantine
        self._metrics = metrics
        self._upstreams = upstreams
        self._limits = limits
        self._events = events
        self._revision = 1
        self._offers: dict[str, Offer] = {}
        self._failures: dict[str, Failure] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._stale: set[str] = set()
        self._announced: dict[str, set[EntryKind]] = {}
        self._owed: set[str] = set()
        """Servers without whose lists somebody has been answered: when they come, that is news."""

    @property
    def revision(self) -> int:
        """Grows whenever what callers are shown of the lists may be different."""
        return self._revision + self._quarantine.revision

    @property
    def quarantined(self) -> frozenset[tuple[str, str]]:
        return self._quarantine.tools

    def offers(self) -> Mapping[str, Offer]:
        return self._offers

    def offer(self, server: str) -> Offer | None:
        return self._offers.get(server)

    def failure(self, server: str) -> TaskgateError | None:
        failure = self._failures.get(server)
        return failure.reason if failure is not None else None

    def adopt(self, changed: Iterable[str], limits: Limits) -> None:
        """After a reload: forget those that are gone or are no longer the same; lists cut by other limits are asked for again."""
        before, self._limits = self._limits, limits
        upstreams = self._upstreams.value
        if (before.list_pages, before.tools_per_upstream) != (limits.list_pages, limits.tools_per_upstream):
            self._stale.update(self._offers)
        for server in (*changed, *(known for known in list(self._offers) if known not in upstreams)):
            self._offers.pop(server, None)
            self._failures.pop(server, None)
            self._owed.discard(server)
        self._revision += 1

    async def ready(self, servers: Iterable[str]) -> None:
        """Make sure that every one of these has been listed or has failed to; in parallel, each within its time."""
        missing = [server for server in servers if self._needs_fetch(server)]
        if missing:
            await asyncio.gather(*(asyncio.shield(self._fetch(server)) for server in missing))

    def known(self, servers: Iterable[str]) -> bool:
        return not any(self._needs_fetch(server) for server in servers)

    def _needs_fetch(self, server: str) -> bool:
        if server not in self._upstreams.value:
            return False
        failure = self._failures.get(server)
        if failure is not None and clock.monotonic() < failure.until:
            return False
        offer = self._offers.get(server)
        if offer is None or server in self._stale:
            return True
        return offer.expires is not None and clock.monotonic() > offer.expires

    def changed(self, server: str, kinds: Iterable[EntryKind] = ()) -> None:
        """The upstream says that a list changed: fetch again soon, once for a burst of such news."""
        self._announced.setdefault(server, set()).update(kinds)
        asked_for = server in self._offers or server in self._owed
        if server in self._upstreams.value and asked_for and server not in self._stale:
            self._stale.add(server)
            self._fetch(server, COALESCE_S)

    async def refresh(self, server: str) -> None:
        """Ask for the lists now, whatever is known; raises what went wrong."""
        self._stale.add(server)
        self._failures.pop(server, None)
        await asyncio.shield(self._fetch(server))
        problem = self.failure(server)
        if problem is not None:
            raise problem

    def _fetch(self, server: str, after_s: float = 0.0) -> asyncio.Task[None]:
        running = self._fetching.get(server)
        if running is None or running.done():
            running = self._fetching[server] = asyncio.get_running_loop().create_task(self._fetch_now(server, after_s))
        return running

    async def _fetch_now(self, server: str, after_s: float) -> None:
        if after_s:
            await clock.sleep(after_s)
        self._stale.discard(server)
        began = clock.monotonic()
        try:
            async with asyncio.timeout(self._limits.list_timeout_s):
                link = await self._upstreams.value[server].listening_link()
                offer = await self._ask(link)
        except TimeoutError:
            self._failed(server, UpstreamError("upstream_timeout", f"The server {server} took too long to list."))
        except TaskgateError as problem:
            self._failed(server, problem)
        else:
            self._metrics.injection.add(server, "success")
            self._arrived(server, offer)
        self._metrics.list_latency.observe(clock.monotonic() - began, server)

    def _failed(self, server: str, reason: TaskgateError) -> None:
        self._failures[server] = Failure(clock.monotonic() + FAILURE_MEMORY_S, reason)
        if server not in self._offers:
            self._owed.add(server)
        why = Reason.LIST_TIMEOUT if reason.error_type == "upstream_timeout" else Reason.LIST_FAILED
        self._metrics.injection.add(server, "failed")
        self._metrics.denied_reason.add(server, why.value)
        log.warning("server not listed", server=server, reason=why.value, why=reason.message)

    def _arrived(self, server: str, offer: Offer) -> None:
        self._failures.pop(server, None)
        before = self._offers.get(server)
        self._inspect(server, offer)
        self._offers[server] = offer
        different = _difference(before, offer) | frozenset(self._announced.pop(server, ()))
        if different or before is None:
            self._revision += 1
        if different and (before is not None or server in self._owed):
            self._events.publish(ListsChanged(server, different))
        self._owed.discard(server)

    async def _ask(self, link: Link) -> Offer:
        entries: dict[EntryKind, tuple[Entry, ...]] = {}
        ttls: list[float] = []
        notes: list[str] = []
        for kind, (capability, method, key) in METHODS.items():
            if capability in link.capabilities:
                entries[kind] = await self._pages(link, kind, method, key, ttls, notes)
        expires = None
        if ttls and not _announces_changes(link.capabilities):
            expires = clock.monotonic() + max(LEAST_TTL_S, min(ttls) / 1000)
        return Offer(entries, link.capabilities, link.instructions, expires, tuple(notes))

    async def _pages(
        self, link: Link, kind: EntryKind, method: str, key: str, ttls: list[float], notes: list[str]
    ) -> tuple[Entry, ...]:
        found: list[Entry] = []
        cursor: Raw | None = None
        seen: set[bytes] = set()
        for _ in range(self._limits.list_pages):
            members = await self._page(link, method, cursor)
            page = members.get(key)
            if page is not None:
                found.extend(read_entries(kind, link.server, page))
            if "ttlMs" in members and bytes(members["ttlMs"]).isdigit():
                ttls.append(float(bytes(members["ttlMs"])))
            cursor = members.get("nextCursor")
            if cursor is None or bytes(cursor) in (b"null", b'""') or bytes(cursor) in seen:
                break
            seen.add(bytes(cursor))
        else:
            notes.append(
                f"{method} of {link.server} has more than {self._limits.list_pages} pages; the rest is left out"
            )
        if len(found) > self._limits.tools_per_upstream:
            notes.append(
                f"{link.server} offers more than {self._limits.tools_per_upstream} in {method}; the rest is left out"
            )
        return tuple(found[: self._limits.tools_per_upstream])

    async def _page(self, link: Link, method: str, cursor: Raw | None) -> Members:
        params: Members = {"cursor": cursor} if cursor is not None else {}
        reply = await link.request(
            UpstreamRequest(method, params, LISTING_FACE, self._limits.list_timeout_s, _ignore, _refuse)
        )
        if isinstance(reply, ErrorReply):
            if reply.code == -32601:
                return {}
            raise UpstreamError("upstream_unreachable", f"The server {link.server} could not list its {method}.")
        return wire.members_of(reply.raw)

    async def close(self) -> None:
        for task in self._fetching.values():
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)


def _difference(before: Offer | None, after: Offer) -> frozenset[EntryKind]:
    if before is None:
        return frozenset(after.entries)
    if before.capabilities.get("tasks") != after.capabilities.get("tasks"):
        # What tools show about tasks depends on it.
        return frozenset({*before.entries, *after.entries})
    kinds = {*before.entries, *after.entries}
    return frozenset(kind for kind in kinds if _bytes(before, kind) != _bytes(after, kind))


def _bytes(offer: Offer, kind: EntryKind) -> list[bytes]:
    return [bytes(entry.raw) for entry in offer.entries.get(kind, ())]


def _announces_changes(capabilities: Mapping[str, Any]) -> bool:
    tools = capabilities.get("tools")
    return isinstance(tools, Mapping) and tools.get("listChanged") is True


def _ignore(_method: str, _params: Raw | None) -> None:
    return None


async def _refuse(question: Question) -> Answer:
    return not_supported(question.method)
