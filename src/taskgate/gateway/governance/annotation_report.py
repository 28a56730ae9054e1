"""Log the task support that each tool shows: one line when it is first seen or changes.

Also warn if a policy expects other arguments than the tool declares. Nothing is decided here; views do that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial

import msgspec

from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.task_support import TaskSupport, sends_task_status, supports_tasks
from taskgate.core.facts.table import NO_SCRIPT
from taskgate.core.governance.decision import action_of
from taskgate.core.governance.pipeline import RiskOf, decide_listed
from taskgate.core.governance.task_annotation import annotation_line, shown_support
from taskgate.core.patterns import PatternKind
from taskgate.core.settings.governance import Action
from taskgate.gateway.catalog.catalogs import Offer
from taskgate.gateway.catalog.quarantine import Quarantine
from taskgate.gateway.catalog.tool_entries import schema_of
from taskgate.gateway.plan import Live, Plan
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Gauge, Labels, Metrics
from taskgate.turns import PORTION, in_turns, let_others_run


class _Annotation(msgspec.Struct, frozen=True):
    shown: TaskSupport | None
    action: Action
    upstream_tasks: bool
    forced: bool


_annotation = cache(_Annotation)
"""Returns the same value for all tools that are annotated alike; there are few dozen."""


class AnnotationReport:
    def __init__(self, plan: Live[Plan], quarantine: Quarantine, metrics: Metrics) -> None:
        self._plan = plan
        self._quarantine = quarantine
        self._reported: dict[str, dict[str, _Annotation]] = {}
        """By server and tool."""
        self._tasks: dict[str, tuple[bool, bool]] = {}
        self._again: asyncio.Task[None] | None = None
        metrics.show(
            Gauge(
                "taskgate_tools_by_annotation",
                "Tools by the task support they declare to callers with support for tasks.",
                ("annotation",),
                self._counts,
            )
        )

    def inspecting(self, server: str, offer: Offer) -> Iterator[None]:
        """Check a server's lists. Yields between portions."""
        plan = self._plan.value
        tasks, status = supports_tasks(offer.capabilities), sends_task_status(offer.capabilities)
        if self._tasks.get(server) != (tasks, status):
            self._tasks[server] = (tasks, status)
            log.info(
                f"Upstream capabilities: tasks={'true' if tasks else 'false'} sse={'true' if status else 'false'}",
                server=server,
            )
        entries = offer.entries.get(EntryKind.TOOL, ())
        alike = offer.alike(EntryKind.TOOL)
        reported = self._reported.setdefault(server, {})
        for gone in reported.keys() - {entry.name for entry in entries}:
            del reported[gone]
        for number, entry in enumerate(entries):
            if number and number % PORTION == 0:
                yield
            self._note(plan, entry, tasks, reported, alike.get(entry.name, ()))

    def _note(
        self,
        plan: Plan,
        entry: CatalogEntry,
        upstream_tasks: bool,
        reported: dict[str, _Annotation],
        alike: tuple[str, ...],
    ) -> None:
        server, name, held = entry.server, entry.name, self._quarantine.tools
        gates, risk_of = plan.gates.of_caller(NO_SCRIPT), self._risk_of(plan, entry)
        decision = decide_listed(gates, PatternKind.TOOL, server, name, alike, quarantined=held, risk_of=risk_of)
        action = action_of(decision)
        forced = any(plan.gates.rules.forced(server, each) for each in (name, *alike))
        shown = shown_support(
            plan.tasks.annotation_mode,
            action,
            upstream_tasks=upstream_tasks,
            upstream_support=entry.task_support,
            forced=forced,
        )
        annotation = _annotation(shown, action, upstream_tasks, forced)
        if reported.get(entry.name) is not annotation:
            reported[entry.name] = annotation
            if log.writes("info"):
                line = annotation_line(entry.name, shown, action, upstream_tasks=upstream_tasks, forced=forced)
                log.info(line, server=entry.server)
            if action is Action.POLICY and plan.governing.policy is not None:
                for warning in plan.governing.policy.contradictions(entry.server, entry.name, schema_of(entry)):
                    log.warning("policy and schema disagree", detail=warning)

    def _risk_of(self, plan: Plan, entry: CatalogEntry) -> RiskOf:
        stated = self._quarantine.stated_risks.get((entry.server, entry.name))
        if stated is not None and stated.digest == entry.digest:
            return lambda _: stated.risk
        return partial(plan.risk_of, entry.server, declared=entry.traits.risk)

    def adopt(self, offers: Callable[[], Mapping[str, Offer]]) -> None:
        """Report every tool again under the rules of a reload, in portions: 10,000 tools would block all callers for 0.2 s."""
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().create_task(self._report_again(offers))

    async def _report_again(self, offers: Callable[[], Mapping[str, Offer]]) -> None:
        for server in self._plan.value.registry.records:
            await let_others_run()
            if server in offers():
                await in_turns(self.inspecting(server, offers()[server]))

    async def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)

    def _counts(self) -> Iterable[tuple[Labels, float]]:
        shown = (annotation.shown for tools in self._reported.values() for annotation in tools.values())
        counts = Counter(support.value if support is not None else "unlisted" for support in shown)
        return [((support,), float(count)) for support, count in sorted(counts.items())]
