"""Keeping watch over tool definitions: what was seen first is pinned, and what changes is reported, or hidden until accepted.

Looks at every list before callers see it. Pins are remembered here and in the store; a change ends the open questions about the old
definition, because nobody agreed to the new one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskgate.core.audit import AuditEntry
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.pin import FirstSeen, Flag, Pin, PinChanged, PinMode, compare_pin
from taskgate.core.catalog.tool_listing import annotation_line, sends_task_status, shown_support, supports_tasks
from taskgate.core.governance.decision import Action, action_of
from taskgate.core.governance.pipeline import decide
from taskgate.core.governance.redaction import Difference, difference
from taskgate.core.patterns import PatternKind
from taskgate.gateway.catalog.catalogs import Offer, Quarantine
from taskgate.gateway.events import DefinitionChanged, EventHub
from taskgate.gateway.governance.evaluate import schema_of
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Gauge, Labels, Metrics

MAX_CHANGED: Final = 10_000

Tool = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Unaccepted:
    """A definition that differs from the pinned one, or one that is new where new ones must be accepted."""

    digest: str
    definition: Mapping[str, Any]
    pinned: str | None
    changes: Difference | None
    flags: tuple[Flag, ...]
    quarantined: bool


class Pins:
    def __init__(self, store: Store, plan: Live[Plan], quarantine: Quarantine, events: EventHub) -> None:
        self._store = store
        self._plan = plan
        self._quarantine = quarantine
        self._events = events
        self._pinned: dict[Tool, Pin] = {}
        self._unaccepted: dict[Tool, Unaccepted] = {}
        self._jobs: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        self._pinned = {(stored.server, stored.tool): stored.pin for stored in await self._store.pins()}

    async def load_again(self, offers: Callable[[], Mapping[str, Offer]]) -> None:
        """Another gateway has pinned or accepted something: whatever is listed here is compared anew."""
        await self.load()
        for server, offer in offers().items():
            self.inspect(server, offer)

    def inspect(self, server: str, offer: Offer) -> None:
        """A server's list has arrived. Returns before anybody is shown it."""
        governing = self._plan.value.governing
        if governing.pins is PinMode.OFF:
            return
        others = [name for name in self._plan.value.registry.records if name != server]
        known = any(tool[0] == server for tool in self._pinned)
        for entry in offer.entries.get(EntryKind.TOOL, ()):
            self._compare(governing.pins, governing.pin_new_tools, entry, others, known)
        self._refresh_quarantine()

    def _compare(self, mode: PinMode, pin_new: bool, entry: CatalogEntry, others: list[str], known: bool) -> None:
        tool = (entry.server, entry.name)
        found = compare_pin(mode, entry.definition, self._pinned.get(tool), others)
        if isinstance(found, FirstSeen):
            self._first_seen(tool, entry, found, held_back=pin_new, server_known=known)
        elif isinstance(found, PinChanged):
            self._changed(tool, entry, found)
        else:
            self._unaccepted.pop(tool, None)

    def _first_seen(
        self, tool: Tool, entry: CatalogEntry, found: FirstSeen, *, held_back: bool, server_known: bool
    ) -> None:
        for flag in found.flags:
            log.warning(
                "suspicious definition",
                server=tool[0],
                tool=tool[1],
                kind=flag.kind.value,
                where=flag.path,
                what=flag.detail,
            )
        if held_back:
            before = self._unaccepted.get(tool)
            if before is None or before.digest != found.digest:
                log.warning("new tool held back until it is accepted", server=tool[0], tool=tool[1])
            self._keep(tool, Unaccepted(found.digest, entry.definition, None, None, found.flags, True))
            return
        if server_known:
            log.warning("new tool", server=tool[0], tool=tool[1])
        self._pinned[tool] = Pin(found.digest, entry.definition)
        self._run(self._pin_first(tool, entry))

    async def _pin_first(self, tool: Tool, entry: CatalogEntry) -> None:
        """Another gateway may have seen another definition before: then ours is the changed one."""
        ours = self._pinned[tool]
        holds = await self._store.put_first_pin(*tool, ours, audit=_entry("tool_pinned", tool, ours.digest))
        if holds.digest == ours.digest:
            return
        self._pinned[tool] = holds
        governing, records = self._plan.value.governing, self._plan.value.registry.records
        others = [name for name in records if name != tool[0]]
        self._compare(governing.pins, governing.pin_new_tools, entry, others, known=True)
        self._refresh_quarantine()

    def _changed(self, tool: Tool, entry: CatalogEntry, found: PinChanged) -> None:
        before = self._unaccepted.get(tool)
        self._keep(
            tool,
            Unaccepted(found.digest, entry.definition, found.pinned, found.changes, found.flags, found.quarantined),
        )
        if before is not None and before.digest == found.digest:
            return
        log.warning(
            "tool definition changed",
            server=tool[0],
            tool=tool[1],
            quarantined=found.quarantined,
            where=[change.path for change in found.changes.changes[:20]],
        )
        self._run(self._store.record_now(_entry("tool_changed", tool, found.digest)))
        self._events.publish(DefinitionChanged(*tool, found.digest))

    def _keep(self, tool: Tool, what: Unaccepted) -> None:
        if tool in self._unaccepted or len(self._unaccepted) < MAX_CHANGED:
            self._unaccepted[tool] = what

    def _refresh_quarantine(self) -> None:
        self._quarantine.replace(frozenset(tool for tool, what in self._unaccepted.items() if what.quarantined))

    def adopt(self, offers: Mapping[str, Offer]) -> None:
        """A reload may have changed the mode: look at everything again."""
        self._unaccepted.clear()
        if self._plan.value.governing.pins is PinMode.OFF:
            self._refresh_quarantine()
            return
        for server in self._plan.value.registry.records:
            if server in offers:
                self.inspect(server, offers[server])
        self._refresh_quarantine()

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
        log.info("tool definition accepted", server=server, tool=tool, by=by)
        return True

    def changed_rows(self) -> list[dict[str, Any]]:
        """Everything that waits for somebody's eye, with what differs."""
        return [_row(tool, what) for tool, what in sorted(self._unaccepted.items())]

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


def _row(tool: Tool, what: Unaccepted) -> dict[str, Any]:
    found = what.changes if what.changes is not None else difference({}, dict(what.definition))
    return {
        "server": tool[0],
        "tool": tool[1],
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


def _entry(event: str, tool: Tool, digest: str, by: str = "") -> AuditEntry:
    approvers = (by,) if by else ()
    return AuditEntry(0, event, server=tool[0], name=tool[1], reason=digest, approvers=approvers)


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
        for entry in entries:
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
