"""What one upstream offers: its lists as they were last fetched, and what it says of itself.

The lists of one upstream are fetched apart and fail apart: a list that could not be fetched keeps the entries of the time before,
and `failed` says why. `to_bytes` and `from_bytes` are the form in which the store keeps it.

What is known of one server's lists, what is being done about them, and for how long anybody waits for that.

The last known lists of every server, from one run of the gateway to the next.

What is kept belongs to one configuration of its server: a server of the same name with another address or command starts anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry, EntryKind, read_entries
from taskgate.core.catalog.skills import SKILLS_EXTENSION, declares_skills
from taskgate.core.errors import GatewayFault, TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.patterns import PatternKind, judged_skeleton
from taskgate.core.wire import Raw
from taskgate.ports.store import CatalogStore, KeptCatalog
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.logs import log


class ListMethod(msgspec.Struct, frozen=True):
    """How one kind of entry is asked for: the capability it needs, the method, and where the entries are in the result."""

    capability: str
    method: str
    key: str


LISTS: Final[Mapping[EntryKind, ListMethod]] = {
    EntryKind.TOOL: ListMethod("tools", "tools/list", "tools"),
    EntryKind.PROMPT: ListMethod("prompts", "prompts/list", "prompts"),
    EntryKind.RESOURCE: ListMethod("resources", "resources/list", "resources"),
    EntryKind.TEMPLATE: ListMethod("resources", "resources/templates/list", "resourceTemplates"),
    EntryKind.SKILL: ListMethod(SKILLS_EXTENSION, "skills/list", "skills"),
}


def has_list(capabilities: Mapping[str, Any], kind: EntryKind) -> bool:
    """Whether a server with these capabilities has a list of this kind."""
    return declares_skills(capabilities) if kind is EntryKind.SKILL else LISTS[kind].capability in capabilities


@dataclass(frozen=True, slots=True)
class OmittedTools:
    """Tools that a server lists and that are in no view, because they are beyond a limit. They cannot be called either: their
    definitions were not read, so no rule, pin or approval was based on them.
    """

    names: frozenset[str] = frozenset()
    cut: bool = False
    """The list was not read to its end: a tool that is not listed may be one of the rest."""

    def covers(self, name: str) -> bool:
        """Whether a tool that is not listed may be one of these, or looks like one."""
        if self.cut or not self.names:
            return self.cut
        looks = judged_skeleton(name, PatternKind.TOOL)
        return any(judged_skeleton(each, PatternKind.TOOL) == looks for each in self.names)

    def with_names(self, names: Iterable[str]) -> OmittedTools:
        every = self.names.union(names)
        return OmittedTools(every, self.cut) if len(every) <= MAX_NAMED else OmittedTools(frozenset(), cut=True)


MAX_NAMED: Final = 1_000
"""Omitted tools that are known by their names. If there are more, no tool that is not listed can be called."""
NOTHING_OMITTED: Final = OmittedTools()


@dataclass(frozen=True, slots=True)
class Offer:
    """`listed_ms` is when the server was last asked (0: never), `ttl_s` for how long it says that its lists are good."""

    entries: Mapping[EntryKind, tuple[CatalogEntry, ...]]
    capabilities: Mapping[str, Any]
    instructions: str | None = None
    generation: Generation | None = None
    listed_ms: int = 0
    ttl_s: float | None = None
    notes: tuple[str, ...] = ()
    failed: Mapping[EntryKind, TaskgateError] = field(default_factory=dict)
    complete: bool = True
    """Whether every list has come or failed; else the rest follows."""
    omitted: OmittedTools = NOTHING_OMITTED

    @property
    def announces_changes(self) -> bool:
        """Whether the server says by itself when any of the lists that it has changes."""
        return self.announced_kinds >= self.entries.keys()

    @property
    def announced_kinds(self) -> frozenset[EntryKind]:
        """The lists that it has and says of when they change."""
        offered = {kind: self.capabilities.get(LISTS[kind].capability) for kind in self.entries}
        return frozenset(
            kind for kind, each in offered.items() if isinstance(each, Mapping) and each.get("listChanged") is True
        )

    def counts(self) -> dict[str, int]:
        return {how.key: len(self.entries[kind]) for kind, how in LISTS.items() if kind in self.entries}


def difference(before: Offer | None, after: Offer) -> frozenset[EntryKind]:
    """The lists that are not what they were, as callers would see them."""
    if before is None:
        return frozenset(after.entries)
    kinds = {*before.entries, *after.entries}
    if before.capabilities.get("tasks") != after.capabilities.get("tasks"):
        # What every tool shows about tasks depends on it.
        return frozenset(kinds)
    return frozenset(kind for kind in kinds if _bytes(before, kind) != _bytes(after, kind))


def same(before: Offer | None, after: Offer) -> bool:
    """Whether nothing that anybody is shown or told has changed: lists, capabilities of any kind, instructions."""
    if before is None or before.capabilities != after.capabilities or before.instructions != after.instructions:
        return False
    if before.generation is not after.generation or before.omitted != after.omitted:
        return False
    return before.notes == after.notes and not difference(before, after)


def _bytes(offer: Offer, kind: EntryKind) -> list[bytes] | None:
    entries = offer.entries.get(kind)
    return None if entries is None else [bytes(entry.raw) for entry in entries]


class _Kept(msgspec.Struct):
    entries: dict[str, list[msgspec.Raw]]
    capabilities: dict[str, Any]
    instructions: str | None
    generation: str | None
    notes: list[str]
    omitted: list[str] = []
    cut: bool = False


_read_kept = msgspec.json.Decoder(_Kept).decode


def to_bytes(offer: Offer) -> bytes:
    generation = offer.generation.value if offer.generation is not None else None
    entries = {kind.value: [Raw(bytes(entry.raw)) for entry in found] for kind, found in offer.entries.items()}
    return wire.encode(
        _Kept(
            entries,
            dict(offer.capabilities),
            offer.instructions,
            generation,
            list(offer.notes),
            sorted(offer.omitted.names),
            offer.omitted.cut,
        ),
    )


def from_bytes(server: str, body: bytes, listed_ms: int) -> Offer | None:
    """None if the bytes cannot be read: then the server is simply asked."""
    try:
        kept = _read_kept(body)
        entries = {
            EntryKind(kind): tuple(read_entries(EntryKind(kind), server, Raw(wire.encode(found))))
            for kind, found in kept.entries.items()
        }
        generation = Generation(kept.generation) if kept.generation is not None else None
    except (msgspec.MsgspecError, ValueError, TaskgateError):
        return None
    omitted = OmittedTools(frozenset(kept.omitted), kept.cut)
    notes = tuple(kept.notes)
    return Offer(entries, kept.capabilities, kept.instructions, generation, listed_ms, notes=notes, omitted=omitted)


FIRST_LIST_WAIT_S: Final = 8.0
"""How long a caller who lists waits for a server of which nothing is known, counted from the first attempt to ask it."""
BRIEF_WAIT_S: Final = 0.25
"""How long anybody waits for lists that are being fetched again, counted from the moment the fetch began."""
NAME_WAIT_S: Final = 2.0
"""How long whoever names what is not listed waits for such a fetch."""
RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 60.0


@dataclass(slots=True)
class ListState:
    """What is known of one server, and what is being done about it."""

    offer: Offer | None = None
    failure: TaskgateError | None = None
    failures: int = 0
    """In a row."""
    retry_at: float = 0.0
    expires: float = 0.0
    fetched: float = float("-inf")
    """When the last fetch ended, well or not."""
    named: float = float("-inf")
    """When the server was last asked because somebody named what is not listed."""
    stale: bool = False
    connecting: bool = False
    """A fetch waits for its connection: news of that connection is no reason to fetch again."""
    owed: bool = False
    """Somebody who listed was answered without these lists: when they come, that is news."""
    announced: set[EntryKind] = field(default_factory=set)
    untold: set[EntryKind] = field(default_factory=set)
    """Those that the server announced to us, and that other gateways have not been told of."""
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
        """How much longer a caller waits for the fetch under way."""
        if (listing or naming) and self.offer is None and self.failures == 0:
            return self.began + FIRST_LIST_WAIT_S - now
        return self.began + (NAME_WAIT_S if naming else BRIEF_WAIT_S) - now

    def asked_for_a_name(self, now: float, least_s: float) -> bool:
        """Whether somebody who names what is not listed is a reason to ask the server, or to wait for the fetch under way."""
        if self.fetching:
            return True
        if self.offer is not None and now - self.named <= least_s:
            return False
        self.named = now
        return True

    def restored(self, offer: Offer) -> None:
        """What the last run knew: shown, and to be asked for at once."""
        self.offer = offer

    def outdated(self) -> None:
        self.stale = True

    def owes(self) -> None:
        self.owed = True

    def news(self, kinds: Collection[EntryKind], *, elsewhere: bool) -> bool:
        """The server said that its lists changed, to us or `elsewhere`, or may have become another. Whether it is to be asked
        because of that."""
        self.announced.update(kinds)
        self.untold.update(() if elsewhere else kinds)
        if self.connecting or self.stale:
            return False
        self.stale, self.retry_at = True, 0.0
        return not self.fetching

    def fetched_by(self, fetch: asyncio.Task[None], now: float) -> asyncio.Task[None]:
        self.fetch, self.began = fetch, now
        return fetch

    def give_up_fetch(self) -> asyncio.Task[None] | None:
        """What is under way counts no more; whoever began it sees to its end."""
        fetch, self.fetch, self.retry_at = self.fetch, None, 0.0
        return fetch

    def asks(self) -> None:
        self.stale = False

    @contextmanager
    def connects(self) -> Iterator[None]:
        self.connecting = True
        try:
            yield
        finally:
            self.connecting = False

    def answered(self, now: float) -> None:
        """Well or not."""
        self.fetched = now

    def failed(self, reason: TaskgateError, now: float) -> None:
        """The server, or one of its lists, failed: it is asked again later, and ever later."""
        self.failure = reason
        self.failures += 1
        self.retry_at = now + min(LONGEST_RETRY_S, RETRY_S * 2 ** min(self.failures - 1, 10))

    def arrived(self, offer: Offer, expires: float, now: float) -> frozenset[EntryKind]:
        """Lists have come. Which of them the server had announced as changed."""
        self.offer, self.expires, self.owed = offer, expires, False
        if offer.complete and offer.failed:
            self.failed(next(iter(offer.failed.values())), now)
        elif offer.complete:
            self.failure, self.failures, self.retry_at = None, 0, 0.0
        announced = frozenset(self.announced)
        self.announced.clear()
        return announced

    def tells(self) -> frozenset[EntryKind]:
        """What other gateways are to be told now."""
        untold = frozenset(self.untold)
        self.untold.clear()
        return untold


MOST_BYTES: Final = 16 * 1024 * 1024


class CatalogMemory:
    def __init__(self, store: CatalogStore) -> None:
        self._store = store
        self._stored: dict[str, tuple[str, bytes]] = {}

    async def restore(self, upstreams: Mapping[str, Upstream]) -> dict[str, Offer]:
        """What was known of these servers, as they are configured now; anything else is forgotten."""
        found: dict[str, Offer] = {}
        for kept in await self._store.kept_catalogs():
            upstream = upstreams.get(kept.server)
            same = upstream is not None and upstream.fingerprint == kept.fingerprint
            offer = from_bytes(kept.server, kept.body, kept.listed_ms) if same else None
            if offer is None:
                self._store.forget_catalog(kept.server)
                continue
            self._stored[kept.server] = (kept.fingerprint, kept.body)
            found[kept.server] = offer
        return found

    def announce(self, server: str, kinds: Collection[EntryKind]) -> None:
        """Tell the other gateways on the store what the server said to us, also where we see no difference: one that sees another
        program of the same server, or has looked in between, must tell its callers all the same."""
        try:
            self._store.announce_lists(server, sorted(kinds))
        except GatewayFault as problem:
            log.warning("changed lists not announced", server=server, why=problem.message)

    def keep(self, upstream: Upstream, offer: Offer) -> None:
        """Nobody waits for it, and it may be lost: a store in trouble is not a reason to show nothing."""
        body = to_bytes(offer)
        if len(body) > MOST_BYTES:
            return
        try:
            if self._stored.get(upstream.id) == (upstream.fingerprint, body):
                self._store.catalog_confirmed(upstream.id, offer.listed_ms)
                return
            self._store.keep_catalog(KeptCatalog(upstream.id, upstream.fingerprint, offer.listed_ms, body))
            self._stored[upstream.id] = (upstream.fingerprint, body)
        except GatewayFault as problem:
            log.warning("lists not kept", server=upstream.id, why=problem.message)

    def forget(self, server: str) -> None:
        self._stored.pop(server, None)
        try:
            self._store.forget_catalog(server)
        except GatewayFault as problem:
            log.warning("kept lists not forgotten", server=server, why=problem.message)
