"""Report patterns of the configuration that match none of the names that the servers list: a rule that denies nothing.

Examined after each change of lists and each reload, in portions. One line is logged for each pattern, and again only if it matched
in between or what was probably meant changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from taskgate import clock
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.governance.unmatched_patterns import Listed, NameIndex, PatternUse, SchemaOf, UnmatchedPattern
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.registry import Registry
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.offer import Offer
from taskgate.gateway.events import EventHub, ListsFetched, PlanReplaced
from taskgate.gateway.plan import Live, Plan
from taskgate.telemetry.logs import log
from taskgate.turns import PORTION, let_others_run

SUGGESTIONS: Final = 50
"""Patterns for which it is determined what was meant; for further ones, only that they match nothing."""
MAX_LINES: Final = 50
_TOGETHER_S: Final = 0.05
"""Lists that arrive within this time are examined once."""
_KINDS: Final = {PatternKind.TOOL: EntryKind.TOOL, PatternKind.PROMPT: EntryKind.PROMPT}


def names_by_kind(offer: Offer) -> dict[PatternKind, list[str]]:
    """Return the names that a server lists. A kind whose list is not complete is missing."""
    found = {
        kind: [entry.name for entry in offer.entries.get(listed, ())]
        for kind, listed in _KINDS.items()
        if offer.complete and listed not in offer.failed
    }
    if PatternKind.TOOL in found:
        found[PatternKind.TOOL] += sorted(offer.omitted.names)
        if offer.omitted.cut:
            del found[PatternKind.TOOL]
    unknown = {EntryKind.RESOURCE, EntryKind.TEMPLATE} & offer.failed.keys()
    if offer.complete and not unknown and not offer.entries.get(EntryKind.TEMPLATE):
        found[PatternKind.RESOURCE] = [entry.name for entry in offer.entries.get(EntryKind.RESOURCE, ())]
    return found


def listed_names(registry: Registry, offers: Mapping[str, Offer]) -> Listed:
    """Return what is known of all servers of the configuration: nothing of one that has not listed anything yet.

    A disabled server is left out: no pattern applies to it.
    """
    ids = [record.id for record in registry.records.values() if record.enabled or record.id in offers]
    return {server: names_by_kind(offers[server]) if server in offers else {} for server in ids}


def schemas_in(offers: Mapping[str, Offer]) -> SchemaOf:
    """Return a function that returns the input schema of a listed tool, or None."""
    tools: dict[str, dict[str, CatalogEntry]] = {}

    def schema_of(server: str, tool: str) -> Any:
        if server not in tools:
            tools[server] = {entry.name: entry for entry in offers[server].entries.get(EntryKind.TOOL, ())}
        entry = tools[server].get(tool)
        return entry.input_schema if entry is not None else None

    return schema_of


class UnmatchedReport:
    """`found` are the patterns of the configuration in force that certainly match nothing."""

    def __init__(self, plan: Live[Plan], catalogs: Catalogs, events: EventHub) -> None:
        self.found: tuple[UnmatchedPattern, ...] = ()
        self._plan = plan
        self._catalogs = catalogs
        self._logged: dict[PatternUse, UnmatchedPattern] = {}
        self._is_complete = False
        """Whether the names for all patterns were known. Otherwise lists without a change may be those that were missing."""
        self._examined: tuple[tuple[PatternUse, ...], Registry] | None = None
        self._is_due = False
        self._work: asyncio.Task[None] | None = None
        events.subscribe(ListsFetched, self._lists_fetched)
        events.subscribe(PlanReplaced, self._plan_replaced)

    def _lists_fetched(self, event: ListsFetched) -> None:
        if event.changed or not self._is_complete:
            self._examine_soon()

    def _plan_replaced(self, _event: PlanReplaced) -> None:
        plan = self._plan.value
        if self._examined is None or self._examined[0] is not plan.patterns or self._examined[1] is not plan.registry:
            self._examine_soon()

    def _examine_soon(self) -> None:
        self._is_due = True
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._examine())

    async def _examine(self) -> None:
        while self._is_due:
            await clock.sleep(_TOGETHER_S)
            self._is_due = False
            try:
                await self._examine_once()
            except Exception as fault:  # one background job: the rules are in force without it
                log.error("patterns were not examined", exc_info=fault)

    async def _examine_once(self) -> None:
        plan = self._plan.value
        self._examined = (plan.patterns, plan.registry)
        offers = self._catalogs.offers()
        index = NameIndex(listed_names(plan.registry, offers), schemas_in(offers))
        found: dict[PatternUse, UnmatchedPattern] = {}
        matching, is_complete = set[PatternUse](), True
        for number, use in enumerate(plan.patterns):
            if number % PORTION == 0:
                await let_others_run()
            unmatched = index.unmatched(use, suggest=len(found) < SUGGESTIONS)
            if unmatched is not None:
                found[use] = unmatched
                if len(found) <= SUGGESTIONS:  # looking for similar names takes some milliseconds
                    await let_others_run()
            elif index.is_known(use):
                matching.add(use)
            else:
                is_complete = False
        self._is_complete = is_complete
        self.found = tuple(found.values())
        in_force = set(plan.patterns)
        self._logged = {use: each for use, each in self._logged.items() if use in in_force and use not in matching}
        self._log(each for use, each in found.items() if not self._is_logged(use, each))
        self._logged |= found

    def _is_logged(self, use: PatternUse, unmatched: UnmatchedPattern) -> bool:
        before = self._logged.get(use)
        return before is not None and before.instead == unmatched.instead

    @staticmethod
    def _log(new: Iterable[UnmatchedPattern]) -> None:
        lines = [str(each) for each in new]
        for line in lines[:MAX_LINES]:
            log.warning(line)
        if len(lines) > MAX_LINES:
            log.warning("more patterns match nothing", count=len(lines) - MAX_LINES)

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
