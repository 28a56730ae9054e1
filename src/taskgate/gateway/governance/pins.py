"""Pin definitions: the first one seen is stored, and a changed one is reported, or withheld until an operator accepts it.

Every list is checked before callers see it, and the content of a tool's interface (MCP Apps) whenever it is read. Pins are held
in memory and in the store. A change ends open approvals of the old definition, because approvers were not shown the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.apps import UI_SCHEME
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.pin import (
    Accepted,
    FirstSeen,
    Pin,
    PinChanged,
    PinMode,
    Pinned,
    compare_pin,
    covers_lookalikes,
    digest_with_lookalikes,
    parsed_definition,
    raw_definition,
    raw_with_lookalikes,
)
from taskgate.core.catalog.pin_keys import RESOURCE_PREFIX, SKILL_PREFIX, kind_of, resource_key, risk_key, skill_key
from taskgate.core.catalog.pinned_content import compare_content
from taskgate.core.catalog.skills import read_skill
from taskgate.core.catalog.suspicions import Flag, certainly_has_none
from taskgate.core.redaction.difference import Difference, difference
from taskgate.core.risk import Risk
from taskgate.core.timestamps import iso
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.catalogs import Offer
from taskgate.gateway.catalog.quarantine import Quarantine
from taskgate.gateway.catalog.stated_risks import StatedRisk, pin_of, stated_risks
from taskgate.gateway.events import DefinitionChanged, EventHub
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.store import Store
from taskgate.replies.definitions import AcceptedDefinition, ChangedDefinition, Finding
from taskgate.replies.differences import changes_in
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.operations.pins import AcceptedDefinitions, FirstPin, PutFirstPins, PutPin, StoredPins
from taskgate.telemetry.logs import log
from taskgate.turns import PORTION

MAX_CHANGED: Final = 10_000
PORTIONS_TOGETHER: Final = 16
"""Portions of first pins that may be written in one transaction: other writes wait for them, some milliseconds."""
_CHANGED: Final = {
    "tool": "tool definition changed",
    "interface": "content of an interface changed",
    "skill": "skill changed",
}
Key = tuple[str, str]
"""A server, and the name of a tool or the key of something else (`core.catalog.pin_keys`)."""


class Unaccepted(msgspec.Struct, frozen=True):
    """A definition that differs from the pinned one, or one that is new where new ones must be accepted."""

    digest: str
    raw: Raw
    pinned: str | None
    changes: Difference | None
    flags: tuple[Flag, ...]
    quarantined: bool

    @property
    def definition(self) -> Mapping[str, Any]:
        return parsed_definition(self.raw)


class Interface(msgspec.Struct, frozen=True):
    tools: frozenset[str] = frozenset()
    """The tools that declare it."""
    listed: Mapping[str, Any] | None = None
    """Its entry in `resources/list`."""


class Pins:
    def __init__(self, store: Store, plan: Live[Plan], quarantine: Quarantine, events: EventHub) -> None:
        self._store = store
        self._plan = plan
        self._quarantine = quarantine
        self._events = events
        self._pinned: dict[Key, Pin] = {}
        self._pinned_servers: set[str] = set()
        """The servers of these pins."""
        self._unaccepted: dict[Key, Unaccepted] = {}
        self._interfaces: dict[str, Mapping[str, Interface]] = {}
        """Interfaces by server and URI."""
        self._first: list[FirstPin] = []
        """First pins that are not stored yet."""
        self._is_storing_first = False
        self._jobs: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        found = await self._store.ask(StoredPins())
        self._pinned = {(stored.server, stored.tool): stored.pin for stored in found}
        self._quarantine.state_risks(stated_risks(found))
        self._pinned_servers = {server for server, _ in self._pinned}

    async def load_again(self, offers: Callable[[], Mapping[str, Offer]]) -> None:
        """Load the pins again after a change by another gateway, and compare all lists with them."""
        await self.load()
        for server, offer in offers().items():
            self.inspect(server, offer)
        self._compare_contents_again()

    def inspect(self, server: str, offer: Offer) -> None:
        """Check all lists of a server at once."""
        for _ in self.inspecting(server, offer):
            pass

    def inspecting(self, server: str, offer: Offer) -> Iterator[None]:
        """Check a server's new lists before they are published. Yields between portions."""
        self._interfaces[server] = _interfaces(offer)
        governing = self._plan.value.governing
        if governing.pins is PinMode.OFF:
            return
        others = tuple(name for name in self._plan.value.registry.records if name != server)
        known = server in self._pinned_servers
        alike = offer.alike(EntryKind.TOOL)
        for number, entry in enumerate(offer.entries.get(EntryKind.TOOL, ())):
            if number and number % PORTION == 0:
                yield
            if entry.name in alike:
                self._compare_lookalike(entry, alike[entry.name], others, known)
            else:
                self._compare_tool(entry, others, known)
        for number, entry in enumerate(offer.entries.get(EntryKind.SKILL, ())):
            if number and number % PORTION == 0:
                yield
            self._compare_skill(entry, others)
        for gone in [key for key in self._unaccepted if key[0] == server and not self._is_used(key)]:
            del self._unaccepted[gone]
        self._refresh_quarantine()

    def _is_used(self, key: Key) -> bool:
        """Return whether the interface is still declared. A tool that is no longer listed may be listed again unchanged."""
        server, name = key
        return not name.startswith(RESOURCE_PREFIX) or self.is_interface(server, name.removeprefix(RESOURCE_PREFIX))

    def _compare_tool(self, entry: CatalogEntry, others: tuple[str, ...], known: bool) -> None:
        key = (entry.server, entry.name)
        pin = self._pinned.get(key)
        if pin is not None and pin.digest == entry.digest:
            if pin.raw is not entry.raw:
                # The bytes are kept once.
                self._pinned[key] = Pin(pin.digest, entry.raw)
            self._unaccepted.pop(key, None)
            return
        if pin is None and certainly_has_none(bytes(entry.raw), entry.name, others):
            # The definition need not be parsed again.
            self._first_seen(key, entry.raw, FirstSeen(entry.digest, ()), server_known=known)
            return
        if pin is not None and covers_lookalikes(pin, entry.digest, ()):
            self._unaccepted.pop(key, None)
            return
        mode = self._plan.value.governing.pins
        found = compare_pin(mode, entry.definition, pin, others, digest=entry.digest)
        self._found(key, entry.raw, found, server_known=known)

    def _compare_lookalike(
        self, entry: CatalogEntry, alike: tuple[str, ...], others: tuple[str, ...], known: bool
    ) -> None:
        """Compare a tool whose name looks like others of its server: a new one among them is a change of each."""
        key = (entry.server, entry.name)
        pin = self._pinned.get(key)
        if pin is not None and covers_lookalikes(pin, entry.digest, alike):
            self._unaccepted.pop(key, None)
            return
        raw, digest = raw_with_lookalikes(entry.raw, alike), digest_with_lookalikes(entry.digest, alike)
        found = compare_pin(self._plan.value.governing.pins, parsed_definition(raw), pin, others, digest=digest)
        self._found(key, raw, found, server_known=known)

    def _compare_skill(self, entry: CatalogEntry, others: tuple[str, ...]) -> None:
        """Compare a skill's entry with its pin. The entry contains the digests of its files, so it covers them."""
        key = (entry.server, skill_key(entry.name))
        found = compare_pin(self._plan.value.governing.pins, entry.definition, self._pinned.get(key), others)
        self._found(key, entry.raw, found, server_known=False)

    def permits_skill(self, entry: CatalogEntry) -> bool:
        """Return whether a separately fetched entry, and the files it lists, may be returned to a caller."""
        if self._plan.value.governing.pins is PinMode.OFF:
            return True
        self._compare_skill(entry, tuple(name for name in self._plan.value.registry.records if name != entry.server))
        self._refresh_quarantine()
        return not self._is_quarantined((entry.server, skill_key(entry.name)))

    def interfaces(self, server: str) -> Iterable[str]:
        return self._interfaces.get(server, {})

    def is_interface(self, server: str, uri: str) -> bool:
        """Return whether a tool of this server declares the URI as its interface, or the server lists it as one."""
        return uri in self._interfaces.get(server, {})

    def listed(self, server: str, uri: str) -> Mapping[str, Any] | None:
        """Return the interface's entry in `resources/list`, if it has one."""
        interface = self._interfaces.get(server, {}).get(uri)
        return interface.listed if interface is not None else None

    def is_unaccepted(self, server: str, uri: str) -> bool:
        return (server, resource_key(uri)) in self._unaccepted

    def permits_content(self, server: str, uri: str, definition: Mapping[str, Any]) -> bool:
        """Return whether the content of an interface may be returned to a caller."""
        key = (server, resource_key(uri))
        before = self._unaccepted.get(key)
        found = compare_content(self._plan.value.governing.pins, definition, self._pinned.get(key))
        if isinstance(found, Accepted):
            self._unaccepted.pop(key, None)
        else:
            self._found(key, raw_definition(definition), found, server_known=False)
        if self._unaccepted.get(key) is not before:
            self._refresh_quarantine()
        return not self._is_quarantined(key)

    def _is_quarantined(self, key: Key) -> bool:
        what = self._unaccepted.get(key)
        return what is not None and what.quarantined

    def _compare_contents_again(self) -> None:
        """Compare the last known content of unaccepted interfaces again, after a change of the pins or of the mode."""
        for (server, name), what in list(self._unaccepted.items()):
            if name.startswith(RESOURCE_PREFIX):
                self.permits_content(server, name.removeprefix(RESOURCE_PREFIX), what.definition)
        self._refresh_quarantine()

    def _found(self, key: Key, raw: Raw, found: Pinned, *, server_known: bool) -> None:
        if isinstance(found, FirstSeen):
            self._first_seen(key, raw, found, server_known=server_known)
        elif isinstance(found, PinChanged):
            self._changed(key, raw, found)
        else:
            self._unaccepted.pop(key, None)

    def _first_seen(self, key: Key, raw: Raw, found: FirstSeen, *, server_known: bool) -> None:
        for flag in found.flags:
            log.warning(
                "suspicious definition",
                server=key[0],
                tool=key[1],
                kind=flag.kind.value,
                where=flag.path,
                what=flag.detail,
            )
        what = kind_of(key[1])
        if self._plan.value.governing.pin_new_tools:
            before = self._unaccepted.get(key)
            if before is None or before.digest != found.digest:
                log.warning(f"new {what} withheld until it is accepted", server=key[0], tool=key[1])
            self._keep(
                key,
                Unaccepted(
                    digest=found.digest, raw=raw, pinned=None, changes=None, flags=found.flags, quarantined=True
                ),
            )
            return
        if server_known:
            log.warning(f"new {what}", server=key[0], tool=key[1])
        pin = self._pinned[key] = Pin(found.digest, raw)
        self._pinned_servers.add(key[0])
        self._first.append(FirstPin(*key, pin, _entry("tool_pinned", key, found.digest)))
        if not self._is_storing_first:
            self._is_storing_first = True
            self._run(self._store_first_pins())

    async def _store_first_pins(self) -> None:
        """Store all first pins, and those that are found meanwhile.

        They are stored by one job and in the order of their keys, so that neighbours are written to the same pages: in the order
        of many lists, every transaction would change pages all over the table.
        """
        try:
            while self._first:
                first, self._first = sorted(self._first, key=_key_of_first), []
                portions = [first[begin : begin + PORTION] for begin in range(0, len(first), PORTION)]
                for begin in range(0, len(portions), PORTIONS_TOGETHER):
                    await asyncio.gather(*map(self._store_portion, portions[begin : begin + PORTIONS_TOGETHER]))
        finally:
            self._is_storing_first = False

    async def _store_portion(self, portion: Sequence[FirstPin]) -> None:
        try:
            await self._pin_first(portion)
        except Exception:  # one definition that cannot be stored must not prevent the others
            for each in portion:
                await self._guarded(self._pin_first([each]))

    async def _pin_first(self, first: Sequence[FirstPin]) -> None:
        for ours, holds in zip(first, await self._store.do(PutFirstPins(first)), strict=True):
            if holds.digest != ours.pin.digest:
                self._pinned_elsewhere((ours.server, ours.tool), ours.pin, holds)

    def _pinned_elsewhere(self, key: Key, ours: Pin, holds: Pin) -> None:
        """Another gateway pinned another definition first, so this one counts as changed."""
        self._pinned[key] = holds
        mode = self._plan.value.governing.pins
        if key[1].startswith(RESOURCE_PREFIX):
            found = compare_content(mode, ours.definition, holds)
        else:
            others = [name for name in self._plan.value.registry.records if name != key[0]]
            found = compare_pin(mode, ours.definition, holds, others, digest=ours.digest)
        self._found(key, ours.raw, found, server_known=True)
        self._refresh_quarantine()

    def _changed(self, key: Key, raw: Raw, found: PinChanged) -> None:
        before = self._unaccepted.get(key)
        self._keep(
            key,
            Unaccepted(
                digest=found.digest,
                raw=raw,
                pinned=found.pinned,
                changes=found.changes,
                flags=found.flags,
                quarantined=found.quarantined,
            ),
        )
        if before is not None and before.digest == found.digest:
            return
        log.warning(
            _CHANGED[kind_of(key[1])],
            server=key[0],
            tool=key[1],
            quarantined=found.quarantined,
            where=[change.path for change in found.changes.changes[:20]],
        )
        self._run(self._store.do(RecordAudit(_entry("tool_changed", key, found.digest))))
        for server, tool in self._tools_of(key):
            self._events.publish(DefinitionChanged(server, tool, found.digest))

    def _tools_of(self, key: Key) -> Iterator[Key]:
        """Yield the tools that this definition belongs to."""
        server, name = key
        if not name.startswith(RESOURCE_PREFIX):
            if not name.startswith(SKILL_PREFIX):
                yield key
            return
        interface = self._interfaces.get(server, {}).get(name.removeprefix(RESOURCE_PREFIX), Interface())
        for tool in sorted(interface.tools):
            yield server, tool

    def _files_of(self, key: Key) -> Iterator[Key]:
        """Yield the files of a skill, current and pinned."""
        server, name = key
        if not name.startswith(SKILL_PREFIX):
            return
        pinned, now = self._pinned.get(key), self._unaccepted.get(key)
        for definition in (known.definition for known in (pinned, now) if known is not None):
            skill = read_skill(definition)
            for uri in (skill.uri, *(file.uri for file in skill.files or ())):
                yield server, resource_key(uri)

    def _keep(self, key: Key, what: Unaccepted) -> None:
        if key in self._unaccepted or len(self._unaccepted) < MAX_CHANGED:
            self._unaccepted[key] = what

    def _refresh_quarantine(self) -> None:
        hidden = {key for key, what in self._unaccepted.items() if what.quarantined}
        hidden |= {tool for key in hidden for tool in self._tools_of(key)}
        hidden |= {file for key in hidden for file in self._files_of(key)}
        changed = {
            tool: what.digest
            for key, what in self._unaccepted.items()
            if key[1].startswith(RESOURCE_PREFIX)
            for tool in self._tools_of(key)
        }
        self._quarantine.replace(frozenset(hidden), changed)

    def adopt(self, offers: Mapping[str, Offer]) -> None:
        """Check all lists again after a reload, which may have changed the mode."""
        contents = {key: what for key, what in self._unaccepted.items() if key[1].startswith(RESOURCE_PREFIX)}
        self._unaccepted.clear()
        if self._plan.value.governing.pins is PinMode.OFF:
            self._refresh_quarantine()
            return
        self._unaccepted.update(contents)
        for server in self._plan.value.registry.records:
            if server in offers:
                self.inspect(server, offers[server])
        self._compare_contents_again()

    async def accept(self, server: str, tool: str, digest: str, by: str) -> bool:
        """Accept a changed definition. Return False if `digest` is not the current one, which the person must have seen."""
        what = self._unaccepted.get((server, tool))
        if what is None or what.digest != digest:
            return False
        pin = Pin(digest, what.raw)
        await self._store.do(
            PutPin(server, tool, pin, by=by, audit=_entry("tool_accepted", (server, tool), digest, by))
        )
        self._pinned[server, tool] = pin
        self._pinned_servers.add(server)
        self._unaccepted.pop((server, tool), None)
        self._refresh_quarantine()
        log.info(f"{kind_of(tool)} accepted", server=server, tool=tool, by=by)
        return True

    async def state_risk(self, server: str, tool: str, digest: str, risk: Risk, by: str) -> None:
        """Store what a person states about the risk of a tool with this definition."""
        stated, key = StatedRisk(digest, risk), risk_key(tool)
        audit = msgspec.structs.replace(_entry("tool_risk_stated", (server, tool), digest, by), decision=risk.value)
        await self._store.do(PutPin(server, key, pin_of(stated), by=by, audit=audit))
        self._quarantine.state_risks({**self._quarantine.stated_risks, (server, tool): stated})
        log.info("risk stated", server=server, tool=tool, risk=risk.value, by=by)

    def changed_rows(self) -> list[ChangedDefinition]:
        """Return all unaccepted definitions, with their differences."""
        return [_row(key, what) for key, what in sorted(self._unaccepted.items())]

    def changes_of(self, server: str, tool: str) -> list[ChangedDefinition]:
        """Return the unaccepted changes of one tool: its definition, and its interface."""
        return [
            _row(key, what)
            for key, what in sorted(self._unaccepted.items())
            if key[0] == server and (server, tool) in self._tools_of(key)
        ]

    async def accepted_definitions(self, server: str, tool: str) -> list[AcceptedDefinition]:
        """Return the definitions that were accepted, newest first, each with its differences from the one before."""
        found = await self._store.ask(AcceptedDefinitions(server, tool))
        return [
            AcceptedDefinition(
                digest=one.pin.digest,
                at=iso(one.at_ms),
                by=one.by,
                changes=changes_in(difference(dict(before.pin.definition), dict(one.pin.definition)))
                if before is not None
                else None,
            )
            for one, before in zip_longest(found, found[1:])
        ]

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.get_running_loop().create_task(self._guarded(work))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as fault:  # a background write that is not awaited; the pin stays in memory
            log.error("pins could not be stored", exc_info=fault)

    async def close(self) -> None:
        await asyncio.gather(*self._jobs, return_exceptions=True)


def _key_of_first(first: FirstPin) -> Key:
    return first.server, first.tool


def _interfaces(offer: Offer) -> dict[str, Interface]:
    """Return a server's interfaces: those that its tools declare, and those that it lists."""
    tools: dict[str, set[str]] = {}
    for entry in offer.entries.get(EntryKind.TOOL, ()):
        for uri in entry.ui_addresses:
            tools.setdefault(uri, set()).add(entry.name)
    resources = offer.entries.get(EntryKind.RESOURCE, ())
    listed = {entry.name: entry.definition for entry in resources if entry.name.startswith(UI_SCHEME)}
    return {uri: Interface(frozenset(tools.get(uri, ())), listed.get(uri)) for uri in {**tools, **listed}}


def _row(key: Key, what: Unaccepted) -> ChangedDefinition:
    found = what.changes if what.changes is not None else difference({}, dict(what.definition))
    return ChangedDefinition(
        server=key[0],
        tool=key[1],
        kind=kind_of(key[1]),
        digest=what.digest,
        pinned=what.pinned,
        quarantined=what.quarantined,
        flags=[Finding(kind=one.kind.value, where=one.path, what=one.detail) for one in what.flags],
        changes=changes_in(found),
    )


def _entry(event: str, key: Key, digest: str, by: str = "") -> AuditEntry:
    approvers = (by,) if by else ()
    kind = "tool" if kind_of(key[1]) == "tool" else "resource"
    return AuditEntry(0, event, server=key[0], name=key[1], kind=kind, reason=digest, approvers=approvers)
