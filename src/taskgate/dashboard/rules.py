"""Rules in force, rehearsals of changed rules, and suggestions; used by pages and the API."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.catalog.names import alike_names
from taskgate.core.facts.conditions import phrase
from taskgate.core.facts.table import NO_SCRIPT
from taskgate.core.governance.approval import State
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.decision import (
    Branch,
    Decision,
    Forward,
    NeedsApproval,
    NeedsPolicy,
    Residue,
    action_of,
)
from taskgate.core.governance.pipeline import Gates, decide_listed
from taskgate.core.governance.rehearse import Rehearsal, rehearse
from taskgate.core.governance.rules import DescribedRule
from taskgate.core.governance.suggestions import Suggestion, ToolHistory, suggest
from taskgate.core.patterns import PatternKind
from taskgate.core.risk import Risk
from taskgate.core.settings.governance import Action
from taskgate.core.settings.servers import ToolTraits
from taskgate.core.tool_class import ToolClass
from taskgate.core.usage import day_of, days_before, summed
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.periods import DAYS, since_ms
from taskgate.dashboard.ports import RuleBookOf, UnmatchedPatterns
from taskgate.dashboard.records import Records
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.listed_tools import ListedTools
from taskgate.ports.store import Store
from taskgate.replies.fields import extended
from taskgate.replies.rules import PatternWithoutMatch, RuleInForce
from taskgate.store.operations.usage import LastRecordedCall, RecordedPage

HITS_FROM: Final = 5_000
"""Number of recent recorded calls that are counted by rule."""
_PAGE: Final = 500
_APPROVALS: Final = 1_000


class PossibleDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided about a call of a tool if the conditions are met and those of the decisions before it are not."""

    action: Action
    workflow: str
    conditions: str
    """Those that depend on the caller or the call."""
    because: str
    """All conditions of the rule, if they are met by every call."""
    rule: str
    reason: str
    begins: bool
    """Whether it is the first of its layer. Of several layers the strictest decision counts."""


class Rules(msgspec.Struct, eq=False, kw_only=True):
    """Rules in force, rehearsals and suggestions."""

    live_plan: Live[Plan]
    store: Store
    listed: ListedTools
    unmatched: UnmatchedPatterns
    rule_book: RuleBookOf
    records: Records
    configuration: Configuration

    @property
    def plan(self) -> Plan:
        return self.live_plan.value

    @property
    def is_recording(self) -> bool:
        return self.plan.governing.record is not None

    async def in_force(self, user: Approver) -> list[RuleInForce]:
        """The rules in order, with the number of recent recorded calls that each decided."""
        last = await self.store.ask(LastRecordedCall())
        hits: Counter[str] = Counter()
        page = RecordedPage((), max(0, last - HITS_FROM))
        while page.after is not None:
            page = await self.records.recorded_calls(user, 0, page.after, _PAGE)
            hits.update(call.rule for call in page.calls)
            await clock.sleep(0)
        wrong = {
            f"{each.place} {each.pattern}": self.configuration.hidden(each.message) for each in self.unmatched.found
        }
        return [
            extended(RuleInForce, row, calls=hits[row.rule], unmatched=wrong.get(row.rule, ""))
            for row in self.described()
        ]

    def without_match(self) -> list[PatternWithoutMatch]:
        """The patterns that match nothing, with secrets of the configuration redacted."""
        hide = self.configuration.hidden
        return [
            PatternWithoutMatch(
                place=each.place,
                pattern=hide(each.pattern),
                names=each.names,
                instead=tuple(map(hide, each.instead)),
                message=hide(str(each)),
            )
            for each in self.unmatched.found
        ]

    def described(self) -> list[DescribedRule]:
        """The rules in order, with secrets of the configuration redacted."""
        hide = self.configuration.hidden
        rows = self.plan.gates.rules.described()
        return [msgspec.structs.replace(row, reason=hide(row.reason), when=hide(row.when)) for row in rows]

    def possible(self, server: str, tool: str) -> list[PossibleDecision]:
        """What may be decided about calls of a tool, with secrets of the configuration redacted."""
        decision = self._decision(self.plan.gates, server, tool)
        layers = decision.layers if isinstance(decision, Residue) else ((Branch((), decision),),)
        # Beside other layers, one that always forwards restricts nothing.
        layers = (
            tuple(layer for layer in layers if not isinstance(layer[0].decision, Forward) or len(layer) > 1) or layers
        )
        return [self._possible(branch, begins=not place) for layer in layers for place, branch in enumerate(layer)]

    def _possible(self, branch: Branch, *, begins: bool) -> PossibleDecision:
        hide, decision = self.configuration.hidden, branch.decision
        workflow = decision.workflow if isinstance(decision, NeedsApproval | NeedsPolicy) else None
        return PossibleDecision(
            action=action_of(decision),
            workflow=workflow or "",
            conditions=hide(phrase(branch.conditions)),
            because="" if branch.conditions else hide(decision.because),
            rule=hide(decision.rule),
            reason=hide(decision.reason),
            begins=begins,
        )

    def _decision(self, gates: Gates, server: str, tool: str) -> Decision:
        offer = self.listed.offer(server)
        tools = {entry.name: entry for entry in (offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ())}
        alike = alike_names(tools).get(tool, ())

        def risk_of(name: str) -> Risk:
            return self.plan.risk_of(server, name, tools[name].traits.risk if name in tools else Risk.UNDECLARED)

        return decide_listed(gates, PatternKind.TOOL, server, tool, alike, risk_of=risk_of)

    async def rehearsed(self, user: Approver, governance: str, since: str | None) -> Rehearsal:
        return await self._rehearsed(user, self.configuration.plan_with(governance), since)

    async def _rehearsed(self, user: Approver, plan: Plan, since: str | None) -> Rehearsal:
        book, found = self.rule_book(plan), Rehearsal()
        first, after = since_ms(since, self.records.now_ms()), 0
        while True:
            page = await self.records.recorded_calls(user, first, after, _PAGE)
            rehearse(book, page.calls, found)
            if page.after is None:
                return found
            after = page.after
            # Let other requests run.
            await clock.sleep(0)

    async def suggestions(self, user: Approver) -> tuple[Suggestion, ...]:
        histories = await self._decided(user)
        now = self.records.now_ms()
        used = summed(await self.records.usage(user, days_before(now, DAYS), day_of(now)), ("server", "tool"))
        ran = {(row.server, row.tool): row.calls for row in used}
        found = [self._history(*tool, histories.get(tool, Counter()), ran.get(tool, 0)) for tool in {*histories, *ran}]
        return suggest(sorted(found, key=lambda history: (history.server, history.tool)))

    async def _decided(self, user: Approver) -> dict[tuple[str, str], Counter[State]]:
        page = await self.records.held_page(user, open_only=False, limit=_APPROVALS)
        found: dict[tuple[str, str], Counter[State]] = {}
        for held in page.held:
            binding = held.approval.binding
            if binding.kind is PatternKind.TOOL:
                found.setdefault((binding.server, binding.tool), Counter())[held.approval.state] += 1
        return found

    def _history(self, server: str, tool: str, decided: Counter[State], ran: int) -> ToolHistory:
        forwarded = isinstance(self._decision(self.plan.gates.of_caller(NO_SCRIPT), server, tool), Forward)
        return ToolHistory(
            server=server,
            tool=tool,
            approved=decided[State.APPROVED] + decided[State.USED],
            denied=decided[State.DENIED],
            expired=decided[State.EXPIRED],
            forwarded=ran if forwarded else 0,
            risky=self._risky(server, tool),
        )

    def _risky(self, server: str, tool: str) -> bool:
        if self.plan.traits.get((server, tool), ToolTraits()).tool_class is ToolClass.ONCE:
            return True
        offer = self.listed.offer(server)
        entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
        return any(entry.name == tool and entry.annotations.get("destructiveHint") is True for entry in entries)
