"""Keeping watch over definitions: what was seen first is pinned, and what changes is reported, or hidden until accepted.

Looks at every list before callers see it, and at the content of tools' interfaces whenever it is read. Pins are remembered here and
in the store; a change ends the open questions about the old definition, because nobody agreed to the new one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.apps import UI_SCHEME
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.pin import FirstSeen, Pin, PinChanged, PinMode, Pinned, compare_pin
from taskgate.core.catalog.pin_keys import RESOURCE_PREFIX, SKILL_PREFIX, kind_of, resource_key, skill_key
from taskgate.core.catalog.pinned_content import compare_content
from taskgate.core.catalog.skills import read_skill
from taskgate.core.catalog.suspicions import Flag
from taskgate.core.catalog.task_support import sends_task_status, supports_tasks
from taskgate.core.governance.decision import Action, action_of
from taskgate.core.governance.pipeline import decide
from taskgate.core.governance.task_annotation import annotation_line, shown_support
from taskgate.core.patterns import PatternKind
from taskgate.core.redaction.difference import Difference, difference
from taskgate.gateway.catalog.catalogs import Offer, Quarantine
from taskgate.gateway.events import DefinitionChanged, EventHub
from taskgate.gateway.governance.evaluate import schema_of
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Gauge, Labels, Metrics
from taskgate.turns import PORTION

MAX_CHANGED: Final = 10_000
_CHANGED: Final = {
    "tool": "tool definition changed",
    "interface": "content of an interface changed",
    "skill": "skill changed",
}

Key = tuple[str, str]
"""A server, and the name of a tool or the key of something else (`core.catalog.pin_keys`)."""


@dataclass(frozen=True, slots=True)
class Unaccepted:
    """A definition that differs from the pinned one, or one that is new where new ones must be accepted."""

    digest: str
    definition: Mapping[str, Any]
    pinned: str | None
    changes: Difference | None
    flags: tuple[Flag, ...]
    quarantined: bool


@dataclass(frozen=True, slots=True)
class Interface:
    tools: frozenset[str] = frozenset()
    """Those that declare it."""
    listed: Mapping[str, Any] | None = None
    """Its entry in `resources/list`."""


class Pins:
    def __init__(self, store: Store, plan: Live[Plan], quarantine: Quarantine, events: EventHub) -> None:
        self._store = store
        self._plan = plan
        self._quarantine = quarantine
        self._events = events
        self._pinned: dict[Key, Pin] = {}
        self._unaccepted: dict[Key, Unaccepted] = {}
        self._interfaces: dict[str, Mapping[str, Interface]] = {}
        """For each server its interfaces by their addresses."""
        self._jobs: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        self._pinned = {(stored.server, stored.tool): stored.pin for stored in await self._store.pins()}

    async def load_again(self, offers: Callable[[], Mapping[str, Offer]]) -> None:
        """Another gateway has pinned or accepted something: whatever is listed here is compared anew."""
        await self.load()
        for server, offer in offers().items():
            self.inspect(server, offer)
        self._contents_again()

    def inspect(self, server: str, offer: Offer) -> None:
        """Look at everything of a server again, at once."""
        for _ in self.inspecting(server, offer):
            pass

    def inspecting(self, server: str, offer: Offer) -> Iterator[None]:
        """A server's list has arrived and is not shown yet. Yields between portions of it."""
        self._interfaces[server] = _interfaces(offer)
        governing = self._plan.value.governing
        if governing.pins is PinMode.OFF:
            return
        others = [name for name in self._plan.value.registry.records if name != server]
        known = any(tool[0] == server for tool in self._pinned)
        for number, entry in enumerate(offer.entries.get(EntryKind.TOOL, ())):
            if number and number % PORTION == 0:
                yield
            self._compare_tool(entry, others, known)
        for number, entry in enumerate(offer.entries.get(EntryKind.SKILL, ())):
            if number and number % PORTION == 0:
                yield
            self._compare_skill(entry, others)
        for gone in [key for key in self._unaccepted if key[0] == server and not self._is_used(key)]:
            del self._unaccepted[gone]
        self._refresh_quarantine()

    def _is_used(self, key: Key) -> bool:
        """Whether the interface is still declared. A tool that is no longer listed may come back as it was."""
        server, name = key
        return not name.startswith(RESOURCE_PREFIX) or self.is_interface(server, name.removeprefix(RESOURCE_PREFIX))

    def _compare_tool(self, entry: CatalogEntry, others: list[str], known: bool) -> None:
        key = (entry.server, entry.name)
        found = compare_pin(self._plan.value.governing.pins, entry.definition, self._pinned.get(key), others)
        self._found(key, entry.definition, found, server_known=known)

    def _compare_skill(self, entry: CatalogEntry, others: list[str]) -> None:
        """An entry has the digests of its files, so it stands for them."""
        key = (entry.server, skill_key(entry.name))
        found = compare_pin(self._plan.value.governing.pins, entry.definition, self._pinned.get(key), others)
        self._found(key, entry.definition, found, server_known=False)

    def permits_skill(self, entry: CatalogEntry) -> bool:
        """An entry was fetched by itself. Whether it, and what it lists, may be handed to a caller."""
        if self._plan.value.governing.pins is PinMode.OFF:
            return True
        self._compare_skill(entry, [name for name in self._plan.value.registry.records if name != entry.server])
        self._refresh_quarantine()
        return not self._is_quarantined((entry.server, skill_key(entry.name)))

    # The content of interfaces

    def interfaces(self, server: str) -> Iterable[str]:
        return self._interfaces.get(server, {})

    def is_interface(self, server: str, uri: str) -> bool:
        """Whether a tool of this server declares this address as its interface, or the server lists it as one."""
        return uri in self._interfaces.get(server, {})

    def listed(self, server: str, uri: str) -> Mapping[str, Any] | None:
        """The entry of an interface in `resources/list`, where it has one."""
        interface = self._interfaces.get(server, {}).get(uri)
        return interface.listed if interface is not None else None

    def is_unaccepted(self, server: str, uri: str) -> bool:
        return (server, resource_key(uri)) in self._unaccepted

    def permits_content(self, server: str, uri: str, definition: Mapping[str, Any]) -> bool:
        """An interface was read. Whether what it contains may be handed to a caller."""
        key = (server, resource_key(uri))
        before = self._unaccepted.get(key)
        found = compare_content(self._plan.value.governing.pins, definition, self._pinned.get(key))
        self._found(key, definition, found, server_known=False)
        if self._unaccepted.get(key) is not before:
            self._refresh_quarantine()
        return not self._is_quarantined(key)

    def _is_quarantined(self, key: Key) -> bool:
        what = self._unaccepted.get(key)
        return what is not None and what.quarantined

    def _contents_again(self) -> None:
        """The pins or the mode changed: compare what was last seen of interfaces that were not accepted."""
        for (server, name), what in list(self._unaccepted.items()):
            if name.startswith(RESOURCE_PREFIX):
                self.permits_content(server, name.removeprefix(RESOURCE_PREFIX), what.definition)
        self._refresh_quarantine()

    # What a comparison leads to

    def _found(self, key: Key, definition: Mapping[str, Any], found: Pinned, *, server_known: bool) -> None:
        if isinstance(found, FirstSeen):
            self._first_seen(key, definition, found, server_known=server_known)
        elif isinstance(found, PinChanged):
            self._changed(key, definition, found)
        else:
            self._unaccepted.pop(key, None)

    def _first_seen(self, key: Key, definition: Mapping[str, Any], found: FirstSeen, *, server_known: bool) -> None:
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
                log.warning(f"new {what} held back until it is accepted", server=key[0], tool=key[1])
            self._keep(key, Unaccepted(found.digest, definition, None, None, found.flags, True))
            return
        if server_known:
            log.warning(f"new {what}", server=key[0], tool=key[1])
        self._pinned[key] = Pin(found.digest, definition)
        self._run(self._pin_first(key, definition))

    async def _pin_first(self, key: Key, definition: Mapping[str, Any]) -> None:
        """Another gateway may have seen another definition before: then ours is the changed one."""
        ours = self._pinned[key]
        holds = await self._store.put_first_pin(*key, ours, audit=_entry("tool_pinned", key, ours.digest))
        if holds.digest == ours.digest:
            return
        self._pinned[key] = holds
        mode = self._plan.value.governing.pins
        if key[1].startswith(RESOURCE_PREFIX):
            found = compare_content(mode, definition, holds)
        else:
            others = [name for name in self._plan.value.registry.records if name != key[0]]
            found = compare_pin(mode, definition, holds, others)
        self._found(key, definition, found, server_known=True)
        self._refresh_quarantine()

    def _changed(self, key: Key, definition: Mapping[str, Any], found: PinChanged) -> None:
        before = self._unaccepted.get(key)
        self._keep(
            key, Unaccepted(found.digest, definition, found.pinned, found.changes, found.flags, found.quarantined)
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
        self._run(self._store.record_now(_entry("tool_changed", key, found.digest)))
        for server, tool in self._tools_of(key):
            self._events.publish(DefinitionChanged(server, tool, found.digest))

    def _tools_of(self, key: Key) -> Iterator[Key]:
        """The tools whose definition this is, or is part of."""
        server, name = key
        if not name.startswith(RESOURCE_PREFIX):
            if not name.startswith(SKILL_PREFIX):
                yield key
            return
        interface = self._interfaces.get(server, {}).get(name.removeprefix(RESOURCE_PREFIX), Interface())
        for tool in sorted(interface.tools):
            yield server, tool

    def _files_of(self, key: Key) -> Iterator[Key]:
        """The files of a skill, as they are and as they were pinned."""
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
        """A reload may have changed the mode: look at everything again."""
        contents = {key: what for key, what in self._unaccepted.items() if key[1].startswith(RESOURCE_PREFIX)}
        self._unaccepted.clear()
        if self._plan.value.governing.pins is PinMode.OFF:
            self._refresh_quarantine()
            return
        self._unaccepted.update(contents)
        for server in self._plan.value.registry.records:
            if server in offers:
                self.inspect(server, offers[server])
        self._contents_again()

    async def accept(self, server: str, tool: str, digest: str, by: str) -> bool:
        """A person has seen the difference and takes the new definition. It must be the one they saw."""
        what = self._unaccepted.get((server, tool))
        if what is None or what.digest != digest:
            return False
        pin = Pin(digest, what.definition)
        await self._store.put_pin(server, tool, pin, by=by, audit=_entry("tool_accepted", (server, tool), digest, by))
        self._pinned[server, tool] = pin
        self._unaccepted.pop((server, tool), None)
        self._refresh_quarantine()
        log.info(f"{kind_of(tool)} accepted", server=server, tool=tool, by=by)
        return True

    def changed_rows(self) -> list[dict[str, Any]]:
        """Everything that waits for somebody's eye, with what differs."""
        return [_row(key, what) for key, what in sorted(self._unaccepted.items())]

    def changes_of(self, server: str, tool: str) -> list[dict[str, Any]]:
        """Those that concern one tool: its definition, and its interface."""
        return [
            _row(key, what)
            for key, what in sorted(self._unaccepted.items())
            if key[0] == server and (server, tool) in self._tools_of(key)
        ]

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.get_running_loop().create_task(self._guarded(work))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as fault:  # one background write: nobody awaits it, and what is seen stays known in memory
            log.error("pins could not be stored", exc_info=fault)

    async def close(self) -> None:
        await asyncio.gather(*self._jobs, return_exceptions=True)


def _interfaces(offer: Offer) -> dict[str, Interface]:
    """A server's interfaces: those that its tools declare, and those that it lists."""
    tools: dict[str, set[str]] = {}
    for entry in offer.entries.get(EntryKind.TOOL, ()):
        for uri in entry.ui_addresses:
            tools.setdefault(uri, set()).add(entry.name)
    resources = offer.entries.get(EntryKind.RESOURCE, ())
    listed = {entry.name: entry.definition for entry in resources if entry.name.startswith(UI_SCHEME)}
    return {uri: Interface(frozenset(tools.get(uri, ())), listed.get(uri)) for uri in {**tools, **listed}}


def _row(key: Key, what: Unaccepted) -> dict[str, Any]:
    found = what.changes if what.changes is not None else difference({}, dict(what.definition))
    return {
        "server": key[0],
        "tool": key[1],
        "kind": kind_of(key[1]),
        "digest": what.digest,
        "pinned": what.pinned,
        "quarantined": what.quarantined,
        "flags": [{"kind": f.kind.value, "where": f.path, "what": f.detail} for f in what.flags],
        "changes": {
            "left_out": found.left_out,
            "list": [
                {"path": c.path, "kind": c.kind.value, "before": c.before, "after": c.after, "hidden": c.hidden}
                for c in found.changes
            ],
        },
    }


def _entry(event: str, key: Key, digest: str, by: str = "") -> AuditEntry:
    approvers = (by,) if by else ()
    kind = "tool" if kind_of(key[1]) == "tool" else "resource"
    return AuditEntry(0, event, server=key[0], name=key[1], kind=kind, reason=digest, approvers=approvers)


# What each tool shows about tasks, told to the operator: one line per tool when it is first seen or shows something
# else.
#
# Also warns where a policy expects other arguments than a tool declares. Nothing here decides; views do.


class Annotations:
    def __init__(self, plan: Live[Plan], quarantine: Quarantine, metrics: Metrics) -> None:
        self._plan = plan
        self._quarantine = quarantine
        self._lines: dict[tuple[str, str], str] = {}
        self._shown: dict[tuple[str, str], str] = {}
        self._tasks: dict[str, tuple[bool, bool]] = {}
        metrics.show(
            Gauge(
                "taskgate_tools_by_annotation",
                "Tools by the task support they show to callers that know tasks.",
                ("annotation",),
                self._counts,
            )
        )

    def look(self, server: str, offer: Offer) -> None:
        for _ in self.looking(server, offer):
            pass

    def looking(self, server: str, offer: Offer) -> Iterator[None]:
        """Yields between portions of the list."""
        plan = self._plan.value
        tasks, status = supports_tasks(offer.capabilities), sends_task_status(offer.capabilities)
        if self._tasks.get(server) != (tasks, status):
            self._tasks[server] = (tasks, status)
            log.info(
                f"Upstream capabilities: tasks={'true' if tasks else 'false'} sse={'true' if status else 'false'}",
                server=server,
            )
        entries = offer.entries.get(EntryKind.TOOL, ())
        names = {entry.name for entry in entries}
        for gone in [tool for tool in self._lines if tool[0] == server and tool[1] not in names]:
            del self._lines[gone], self._shown[gone]
        for number, entry in enumerate(entries):
            if number and number % PORTION == 0:
                yield
            self._note(plan, entry, tasks)

    def _note(self, plan: Plan, entry: CatalogEntry, upstream_tasks: bool) -> None:
        decision = decide(plan.gates, PatternKind.TOOL, entry.server, entry.name, quarantined=self._quarantine.tools)
        action = action_of(decision)
        forced = plan.gates.rules.forced(entry.server, entry.name)
        shown = shown_support(
            plan.calls.annotation_mode,
            action,
            upstream_tasks=upstream_tasks,
            upstream_support=entry.task_support,
            forced=forced,
        )
        tool = (entry.server, entry.name)
        line = annotation_line(entry.name, shown, action, upstream_tasks=upstream_tasks, forced=forced)
        self._shown[tool] = shown.value if shown is not None else "unlisted"
        if self._lines.get(tool) != line:
            self._lines[tool] = line
            log.info(line, server=entry.server)
            if action is Action.POLICY and plan.governing.policy is not None:
                for warning in plan.governing.policy.contradictions(entry.server, entry.name, schema_of(entry)):
                    log.warning("policy and schema disagree", detail=warning)

    def adopt(self, offers: Mapping[str, Offer]) -> None:
        """After a reload: every tool is judged by the new rules."""
        for server in self._plan.value.registry.records:
            if server in offers:
                self.look(server, offers[server])

    def _counts(self) -> Iterable[tuple[Labels, float]]:
        counts = Counter(self._shown.values())
        return [((shown,), float(count)) for shown, count in sorted(counts.items())]
