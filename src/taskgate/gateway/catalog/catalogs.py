"""The lists of every upstream: fetch, refresh and publish them. A request waits only for the servers it concerns.

Lists are fetched when the gateway starts, when the server announces a change, after it was unavailable or did not reply, when a
caller names something that is not listed, and when they are older than `limits.list_max_age`. Meanwhile callers get the last known
lists (of this run, or from the store those of the last one) and are notified of changes. Only list requests wait for a server
whose lists are not known yet.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final

from taskgate import clock
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.pinned_content import changed_definition
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.subset import Reason
from taskgate.core.settings.limits import Limits
from taskgate.gateway.catalog.catalog_memory import CatalogMemory
from taskgate.gateway.catalog.fetch_lists import fetch_lists
from taskgate.gateway.catalog.list_state import ListState
from taskgate.gateway.catalog.offer import LISTS, difference, same
from taskgate.gateway.catalog.offer import Offer as Offer
from taskgate.gateway.catalog.quarantine import Quarantine
from taskgate.gateway.catalog.snapshot import CatalogSnapshot
from taskgate.gateway.catalog.stated_risks import StatedRisks
from taskgate.gateway.events import EventHub, ListsChanged, ListsFetched
from taskgate.gateway.plan import Live
from taskgate.ports.call_failure import for_operators
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

COALESCE_S: Final = 0.05
MIN_AGE_S: Final = 5.0
"""Minimum age before lists are fetched again, and minimum interval of fetches for unknown names."""
ANNOUNCED_FACTOR: Final = 10
"""Factor on the maximum age for servers that announce changes; announcements can be lost."""
LONGEST_DOUBLING: Final = 20
"""Doublings of the minimum age that exceed every maximum age."""
CONNECT_S: Final = 30.0
"""Upper bound for connecting. Process start and handshake have shorter timeouts of their own."""
CONTACTED_AT_ONCE: Final = 16
CONTACT_SLOT_S: Final = 2.0
CHECK_INTERVAL_S: Final = 1.0
_LISTED: Final = {PatternKind.TOOL: EntryKind.TOOL, PatternKind.PROMPT: EntryKind.PROMPT}
Inspect = Callable[[str, Offer], Awaitable[None]]
"""Checks every list before it is published."""


def listed_only(servers: Mapping[str, Upstream], limits: Limits) -> Catalogs:
    """Return catalogs that fetch lists but do not store, check or announce them, for commands that show lists to the operator."""
    return Catalogs(Live(servers), limits, _not_inspected, Quarantine(), None, metrics=Metrics(), events=EventHub())


async def _not_inspected(_server: str, _offer: Offer) -> None:
    return None


class Catalogs:
    def __init__(
        self,
        upstreams: Live[Mapping[str, Upstream]],
        limits: Limits,
        inspect: Inspect,
        quarantine: Quarantine,
        memory: CatalogMemory | None,
        *,
        metrics: Metrics,
        events: EventHub,
    ) -> None:
        self._inspect = inspect
        self._quarantine = quarantine
        self._memory = memory
        self._metrics = metrics
        self._live_upstreams = upstreams
        self._limits = limits
        self._events = events
        self.revision = quarantine.revision
        """One revision for lists and quarantine: views compare it in each call."""
        self._states: dict[str, ListState] = {}
        self._dropped: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def quarantined(self) -> frozenset[tuple[str, str]]:
        return self._quarantine.tools

    @property
    def stated_risks(self) -> StatedRisks:
        return self._quarantine.stated_risks

    def changed_interface(self, entry: CatalogEntry) -> str:
        """Return the digest of a tool's interface if it differs from its pin, otherwise an empty string."""
        changed = self._quarantine.changed_interfaces
        return changed.get((entry.server, entry.name), "") if changed else ""

    def definition(self, entry: CatalogEntry) -> str:
        """Return the digest of a tool, including its interface."""
        changed = self.changed_interface(entry)
        return changed_definition(entry.digest, changed) if changed else entry.digest

    @property
    def _upstreams(self) -> Mapping[str, Upstream]:
        return self._live_upstreams.value

    def snapshot(self, servers: Iterable[str]) -> CatalogSnapshot:
        """Return an immutable snapshot of these servers' lists."""
        offers = {server: offer for server in servers if (offer := self.offer(server)) is not None}
        quarantine = self._quarantine
        return CatalogSnapshot(
            offers, quarantine.tools, dict(quarantine.changed_interfaces), stated_risks=quarantine.stated_risks
        )

    def offers(self) -> Mapping[str, Offer]:
        return {server: state.offer for server, state in self._states.items() if state.offer is not None}

    def offer(self, server: str) -> Offer | None:
        state = self._states.get(server)
        return state.offer if state is not None else None

    def alike(self, kind: PatternKind, server: str, name: str) -> tuple[str, ...]:
        """Return the other tools or prompts of the server whose names look like this one."""
        listed, offer = _LISTED.get(kind), self.offer(server)
        return offer.alike(listed).get(name, ()) if listed is not None and offer is not None else ()

    def failure(self, server: str) -> TaskgateError | None:
        """Return why the last fetch failed, wholly or partly."""
        state = self._states.get(server)
        return state.failure if state is not None else None

    def report(self, server: str) -> dict[str, Any]:
        """Return the state of a server's lists for operators: counts, age and failures."""
        state = self._states.get(server)
        if state is None or (state.offer is None and state.failure is None):
            return {"listed": False, "problem": "not asked yet" if state is None else "has not answered yet"}
        body: dict[str, Any] = {"listed": state.offer is not None}
        if state.offer is not None:
            offer = state.offer
            body["generation"] = offer.generation.value if offer.generation is not None else None
            body |= offer.counts()
            body["age_s"] = max(0, round(clock.wall() - offer.listed_ms / 1000))
            if offer.failed:
                body["failed"] = {LISTS[kind].method: why.message for kind, why in offer.failed.items()}
        if state.failure is not None:
            body["problem"] = state.failure.message
        return body

    async def start(self) -> None:
        """Publish the stored lists, and start to fetch those of every server."""
        restored = await self._memory.restore(self._upstreams) if self._memory is not None else {}
        for server, kept in restored.items():
            state = self._states.setdefault(server, ListState())
            if state.offer is None:
                await self._inspect(server, kept)
                state.restored(kept)
                age_s = max(0, round(clock.wall() - kept.listed_ms / 1000))
                log.info("lists of the last run are shown until the server answers", server=server, age_s=age_s)
        self.revision.grow()
        self._keeper = asyncio.get_running_loop().create_task(self._keep_fresh())

    async def _keep_fresh(self) -> None:
        slots = asyncio.Semaphore(CONTACTED_AT_ONCE)
        await asyncio.gather(*(self._contact(server, slots) for server in self._upstreams))
        while True:
            await clock.sleep(CHECK_INTERVAL_S)
            now = clock.monotonic()
            for server in list(self._upstreams):
                if self._state(server).due(now):
                    self._fetch(server)

    async def _contact(self, server: str, slots: asyncio.Semaphore) -> None:
        """Fetch one server's lists. A server that does not answer in time releases its slot."""
        async with slots:
            if server in self._upstreams and self._state(server).due(clock.monotonic()):
                await asyncio.wait({self._fetch(server)}, timeout=CONTACT_SLOT_S)

    def adopt(self, changed: Iterable[str], limits: Limits) -> None:
        """Apply a reload: drop removed and changed servers; fetch again lists that were cut by other limits."""
        before, self._limits = self._limits, limits
        upstreams = self._upstreams
        gone = [known for known in self._states if known not in upstreams]
        for server in {*changed, *gone}:
            state = self._states.pop(server, None)
            if state is not None:
                self._drop_fetch(state)
        if self._memory is not None:
            for server in gone:
                self._memory.forget(server)
        if _fetch_limits(before) != _fetch_limits(limits):
            for state in self._states.values():
                state.outdated()
                self._drop_fetch(state)
        self.revision.grow()
        if self._keeper is not None:
            for server in upstreams:
                if self._state(server).due(clock.monotonic()):
                    self._fetch(server)

    def _drop_fetch(self, state: ListState) -> None:
        fetch = state.give_up_fetch()
        if fetch is not None:
            fetch.cancel()
            self._dropped.add(fetch)
            fetch.add_done_callback(self._dropped.discard)

    async def close(self) -> None:
        running = [state.fetch for state in self._states.values() if state.fetch is not None]
        tasks = [*running, *self._dropped, *([self._keeper] if self._keeper is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled(self, servers: Iterable[str], *, listing: bool = False) -> None:
        """Start the fetches that are due, and wait as long as this kind of request may."""
        now = clock.monotonic()
        waits: dict[asyncio.Task[None], float] = {}
        for server in servers:
            if server in self._upstreams:
                state = self._state(server)
                if state.due(now):
                    self._fetch(server)
                if state.fetch is not None and not state.fetch.done():
                    waits[state.fetch] = state.wait_s(now, listing=listing)
        await asyncio.gather(*(asyncio.wait({fetch}, timeout=left) for fetch, left in waits.items() if left > 0))
        for server in servers if listing else ():
            if server in self._upstreams and self.offer(server) is None:
                self._state(server).require_announcement()

    def is_settled(self, servers: Iterable[str]) -> bool:
        now = clock.monotonic()
        for server in servers:
            state = self._states.get(server)
            if server in self._upstreams and (state is None or state.due(now) or state.fetching):
                return False
        return True

    async def ready(self, servers: Iterable[str]) -> None:
        """Wait until each server's lists are fetched or have failed, in parallel, each within its timeout."""
        asked = [server for server in servers if server in self._upstreams]
        now = clock.monotonic()
        missing = [server for server in asked if self._state(server).fetching or self._state(server).due(now)]
        await asyncio.gather(*(asyncio.shield(self._fetch(server)) for server in missing))

    async def refresh(self, server: str) -> None:
        """Fetch the lists now. Raises the error of a failed fetch."""
        await asyncio.shield(self._fetch(server))
        problem = self.failure(server)
        if problem is not None:
            raise problem

    async def refetch(self, servers: Iterable[str]) -> bool:
        """Fetch the lists of these servers because a caller named something that is not listed; return whether any was fetched.

        The wait is longer than for a list request, because a refusal would be wrong where a list would only be old. The age of the
        lists does not matter: another gateway may have listed what is not known here. The rate is limited, so that callers who
        invent names cannot keep servers busy.
        """
        now = clock.monotonic()
        states = {server: self._state(server) for server in servers if server in self._upstreams}
        asked = [server for server, state in states.items() if state.needs_fetch_for_name(now, MIN_AGE_S)]
        waits = {self._fetch(server): states[server].wait_s(now, naming=True) for server in asked}
        await asyncio.gather(*(asyncio.wait({fetch}, timeout=left) for fetch, left in waits.items() if left > 0))
        return bool(asked)

    def changed(self, server: str, kinds: Collection[EntryKind] = (), *, elsewhere: bool = False) -> None:
        """Fetch again soon, once for a burst of changes: the server announced a change, or may have been replaced.

        `elsewhere`: another gateway on the same store received the announcement.
        """
        if server in self._upstreams and self._state(server).changes_announced(kinds, elsewhere=elsewhere):
            self._fetch(server, COALESCE_S)

    def changeable(self) -> dict[str, frozenset[EntryKind]]:
        """Return the servers with known lists, and which of these lists they announce changes of."""
        offers = {server: state.offer for server, state in self._states.items() if server in self._upstreams}
        return {server: offer.announced_kinds for server, offer in offers.items() if offer is not None}

    def _state(self, server: str) -> ListState:
        return self._states.setdefault(server, ListState())

    def _fetch(self, server: str, after_s: float = 0.0) -> asyncio.Task[None]:
        state = self._state(server)
        if state.fetch is not None and not state.fetch.done():
            return state.fetch
        fetch = asyncio.get_running_loop().create_task(self._fetch_now(server, state, after_s))
        return state.fetched_by(fetch, clock.monotonic())

    async def _fetch_now(self, server: str, state: ListState, after_s: float) -> None:
        if after_s:
            await clock.sleep(after_s)
        state.fetch_begins()
        began = clock.monotonic()
        try:
            offer = await self._ask(server, state)
        except TaskgateError as problem:
            self._failed(server, state, problem)
        else:
            await self._arrived(server, state, offer)
        state.answered(clock.monotonic())
        self._metrics.list_latency.observe(state.fetched - began, server)
        if state.stale:
            # It changed again during the fetch.
            asyncio.get_running_loop().call_soon(self._again, server, state)

    def _again(self, server: str, state: ListState) -> None:
        if self._states.get(server) is state and server in self._upstreams and not state.fetching:
            self._fetch(server, COALESCE_S)

    async def _ask(self, server: str, state: ListState) -> Offer:
        upstream, limits = self._upstreams[server], self._limits
        try:
            with state.while_connecting():
                async with asyncio.timeout(CONNECT_S):
                    link = await upstream.listening_link()
                    if state.fetched > float("-inf"):
                        await link.refresh_capabilities(limits.tools_fetch_timeout_ms / 1000)
        except TimeoutError:
            raise UpstreamError("upstream_timeout", f"The server {server} took too long to connect to.") from None
        return await fetch_lists(link, limits, state.offer, lambda offer: self._arrived(server, state, offer))

    def _failed(self, server: str, state: ListState, reason: TaskgateError) -> None:
        state.failed(reason, clock.monotonic())
        why = Reason.LIST_TIMEOUT if reason.error_type == "upstream_timeout" else Reason.LIST_FAILED
        self._metrics.denied_reason.add(server, why.value)
        if state.failures & (state.failures - 1) == 0:
            # Log the first failure, then at growing intervals; the fetch is retried indefinitely.
            log.warning("server not listed", server=server, reason=why.value, why=for_operators(reason))

    async def _arrived(self, server: str, state: ListState, offer: Offer) -> None:
        """Publish the lists after all of them were inspected."""
        if self._states.get(server) is state:
            await self._inspect(server, offer)
        if self._states.get(server) is not state:
            return
        before, must_announce, now = state.offer, state.must_announce, clock.monotonic()
        is_same = same(before, offer)
        state.compared(offer, is_same)
        announced = state.arrived(offer, now + self._age_s(server, offer, state.unchanged), now)
        different = difference(before, offer) | announced
        if different or not is_same:
            self.revision.grow()
            generation = offer.generation.value if offer.generation is not None else None
            log.info("server listed", server=server, generation=generation, **offer.counts())
        for kind, why in offer.failed.items():
            log.warning("list not fetched", server=server, method=LISTS[kind].method, why=why.message)
        if different and (before is not None or must_announce):
            self._events.publish(ListsChanged(server, different))
        if offer.complete:
            self._events.publish(ListsFetched(server, bool(different)))
        if self._memory is not None and (unpublished := state.take_unpublished()):
            self._memory.announce(server, unpublished)
        if self._memory is not None and offer.complete and not offer.failed:
            self._memory.keep(self._upstreams[server], offer)

    def _age_s(self, server: str, offer: Offer, unchanged: int) -> float:
        """Return the maximum age of these lists, with jitter to spread the fetches.

        The lifetime that a server declares counts as long as its lists change: at each fetch without a difference it is doubled.
        """
        maximum = self._limits.list_max_age * (1 - 0.1 * (zlib.crc32(server.encode()) % 100) / 100)
        if offer.announces_changes:
            return maximum * ANNOUNCED_FACTOR
        if offer.ttl_s is None:
            return maximum
        return min(maximum, max(MIN_AGE_S, offer.ttl_s) * 2.0 ** min(unchanged, LONGEST_DOUBLING))


def _fetch_limits(limits: Limits) -> tuple[int, int, float]:
    return limits.tools_max_pages, limits.tools_per_upstream, limits.tools_fetch_timeout_ms / 1000
