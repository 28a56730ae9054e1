"""Rules in force and rehearsals of changed ones, and scopes that operators hand over."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from taskgate import clock
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.governance.approval import State
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.decision import Forward
from taskgate.core.governance.pipeline import decide
from taskgate.core.governance.rehearse import Rehearsal, rehearse
from taskgate.core.governance.suggestions import Suggestion, ToolHistory, suggest
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.scope import check
from taskgate.core.scoping.session_request import NO_WISH
from taskgate.core.scoping.task_config import TaskConfigError
from taskgate.core.timestamps import iso
from taskgate.core.tool_class import ToolClass
from taskgate.core.usage import day_of, days_before, summed
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import (
    OBJECT,
    TEXT,
    Configuration,
    Route,
    Visit,
    closed_object,
    delete,
    form_route,
    get,
    page_route,
    post,
)
from taskgate.dashboard.web import Answer, json_answer, limit_of, problem
from taskgate.gateway.dynamic_servers import facts_of
from taskgate.gateway.governance.evaluate import rule_book
from taskgate.gateway.plan import Plan, ToolTrait
from taskgate.gateway.services.console import ConsoleServices
from taskgate.ports.store import RecordedPage

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame

DAYS: Final = 7
HITS_FROM: Final = 5_000
"""So many of the latest recorded calls are looked at to say which rule hit."""
_PAGE: Final = 500
_APPROVALS: Final = 1_000
_UNITS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SINCE: Final = re.compile(r"(\d{1,4})([mhd])", re.ASCII)
_EXAMPLES_SHOWN: Final = 50


def since_ms(text: str | None, now_ms: int) -> int:
    """`7d`, `12h` or `30m` before now."""
    found = _SINCE.fullmatch(text or f"{DAYS}d")
    if found is None:
        raise ValueError("since must be a duration such as 7d, 12h or 30m")
    return now_ms - int(found[1]) * _UNITS[found[2]]


class Rules:
    """What the page and the API both need."""

    def __init__(self, gateway: ConsoleServices, records: Records, configuration: Configuration) -> None:
        self._gateway = gateway
        self._store = gateway.tasks.store
        self.records = records
        self.configuration = configuration

    @property
    def plan(self) -> Plan:
        return self._gateway.plan.value

    @property
    def is_recording(self) -> bool:
        return self.plan.governing.record is not None

    async def in_force(self, who: Approver) -> list[dict[str, Any]]:
        """The rules in order, with how many of the latest recorded calls each decided."""
        last = await self._store.last_recorded_call()
        hits: Counter[str] = Counter()
        page = RecordedPage((), max(0, last - HITS_FROM))
        while page.after is not None:
            page = await self.records.recorded_calls(who, 0, page.after, _PAGE)
            hits.update(call.rule for call in page.calls)
            await clock.sleep(0)
        hide = self.configuration.hidden
        return [
            {**row, "reason": row["reason"] and hide(row["reason"]), "calls": hits[row["rule"]]}
            for row in self.plan.gates.rules.described()
        ]

    async def rehearsed(self, who: Approver, governance: str, since: str | None) -> Rehearsal:
        return await self._rehearsed(who, self.configuration.plan_with(governance), since)

    async def _rehearsed(self, who: Approver, plan: Plan, since: str | None) -> Rehearsal:
        book, found = rule_book(plan), Rehearsal()
        first, after = since_ms(since, self.records.now_ms()), 0
        while True:
            page = await self.records.recorded_calls(who, first, after, _PAGE)
            rehearse(book, page.calls, found)
            if page.after is None:
                return found
            after = page.after
            # Whoever calls meanwhile has its turn.
            await clock.sleep(0)

    async def suggestions(self, who: Approver) -> tuple[Suggestion, ...]:
        histories = await self._decided(who)
        now = self.records.now_ms()
        used = summed(await self.records.usage(who, days_before(now, DAYS), day_of(now)), ("server", "tool"))
        ran = {(row.server, row.tool): row.calls for row in used}
        found = [self._history(*tool, histories.get(tool, Counter()), ran.get(tool, 0)) for tool in {*histories, *ran}]
        return suggest(sorted(found, key=lambda history: (history.server, history.tool)))

    async def _decided(self, who: Approver) -> dict[tuple[str, str], Counter[State]]:
        page = await self.records.held_page(who, open_only=False, limit=_APPROVALS)
        found: dict[tuple[str, str], Counter[State]] = {}
        for held in page.held:
            binding = held.approval.binding
            if binding.kind is PatternKind.TOOL:
                found.setdefault((binding.server, binding.tool), Counter())[held.approval.state] += 1
        return found

    def _history(self, server: str, tool: str, decided: Counter[State], ran: int) -> ToolHistory:
        forwarded = isinstance(decide(self.plan.gates, PatternKind.TOOL, server, tool), Forward)
        return ToolHistory(
            server,
            tool,
            decided[State.APPROVED] + decided[State.USED],
            decided[State.DENIED],
            decided[State.EXPIRED],
            ran if forwarded else 0,
            self._risky(server, tool),
        )

    def _risky(self, server: str, tool: str) -> bool:
        if self.plan.traits.get((server, tool), ToolTrait()).tool_class is ToolClass.ONCE:
            return True
        offer = self._gateway.catalogs.offer(server)
        entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
        return any(entry.name == tool and entry.annotations.get("destructiveHint") is True for entry in entries)


class RulesApi:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._records = rules.records

    def routes(self) -> tuple[Route, ...]:
        see, body = Access.SEE, closed_object(("governance",), governance=TEXT, since=TEXT)
        pages = {"since": "such as 7d", "after": "start of the next page", "limit": "maximum number, up to 1000"}
        return (
            get("/rules", see, self._list, "Rules in force, with the number of recorded calls that each decided."),
            get("/rules/suggestions", see, self._suggestions, "Tools that should need approval less or more often."),
            get(
                "/rules/recorded",
                Access.ACT,
                self._recorded,
                "Recorded calls, redacted.",
                query=pages,
                command="taskgate policy rehearse NEW.yaml",
            ),
            post(
                "/rules/rehearse",
                Access.ACT,
                self._rehearse,
                "Evaluate a changed `governance` section (YAML) against recorded calls.",
                body,
                command="taskgate policy rehearse NEW.yaml",
            ),
        )

    async def _list(self, visit: Visit) -> Answer:
        return json_answer({"recording": self._rules.is_recording, "rules": await self._rules.in_force(visit.who)})

    async def _suggestions(self, visit: Visit) -> Answer:
        return json_answer([suggestion_row(one) for one in await self._rules.suggestions(visit.who)])

    async def _recorded(self, visit: Visit) -> Answer:
        first = since_ms(visit.asked("since"), self._records.now_ms())
        after = visit.asked("after") or "0"
        if not (after.isascii() and after.isdigit()) or len(after) > 15:
            raise ValueError("after must be the `next` of the previous page")
        page = await self._records.recorded_calls(visit.who, first, int(after), limit_of(visit.request))
        return json_answer({"calls": page.calls, "next": page.after, "recording": self._rules.is_recording})

    async def _rehearse(self, visit: Visit) -> Answer:
        said = visit.request.json()
        governance, since = said.get("governance"), said.get("since")
        if set(said) - {"governance", "since"} or type(governance) is not str or type(since) not in (str, type(None)):
            raise ValueError('send "governance" (the section as YAML text) and optionally "since", such as 7d')
        return json_answer((await self._rules.rehearsed(visit.who, governance, since)).rows())


class RulesPages:
    def __init__(self, rules: Rules, frame: Frame) -> None:
        self._rules = rules
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/rules", Access.SEE, self._show),
            form_route("/rules", Access.ACT, self._rehearse),
        )

    async def _show(self, visit: Visit) -> Answer:
        return await self._page(visit, self._rules.configuration.governance(), f"{DAYS}d", None, None)

    async def _rehearse(self, visit: Visit) -> Answer:
        form = visit.request.form()
        text, since = form.get("governance", ""), form.get("since", "").strip() or f"{DAYS}d"
        try:
            found = (await self._rules.rehearsed(visit.who, text, since)).rows()
        except ValueError as error:
            return await self._page(visit, text, since, None, str(error))
        return await self._page(visit, text, since, found, None)

    async def _page(
        self, visit: Visit, text: str, since: str, found: dict[str, Any] | None, wrong: str | None
    ) -> Answer:
        return await self._frame.page(
            visit,
            "rules",
            "rules.html",
            rules=await self._rules.in_force(visit.who),
            suggestions=[suggestion_row(one) for one in await self._rules.suggestions(visit.who)],
            recording=self._rules.is_recording,
            may_rehearse=visit.who.may(Permission.ACT),
            governance=text,
            since=since,
            found=found,
            examples=found["examples"][:_EXAMPLES_SHOWN] if found is not None else (),
            wrong=wrong,
        )


def suggestion_row(one: Suggestion) -> dict[str, str]:
    return {"ask": one.ask, "server": one.server, "tool": one.tool, "why": one.why, "rule": one.rule}


# Scopes for operators, as JSON: hand one over for a time, list, look, end. The paths are in docs/api-reference.md.

DEFAULT_LIFETIME_MS: Final = 60 * 60 * 1000
_NO_SUCH_SCOPE: Final = "Scope not found."
_WISH: Final = closed_object(("config",), config=OBJECT, lifetime_ms={"type": "integer"}, label=TEXT)
_KEYS: Final = frozenset({"config", "lifetime_ms", "label"})


class ScopesApi:
    def __init__(self, gateway: ConsoleServices, records: Records) -> None:
        self._gateway = gateway
        self._records = records
        self._temporary = gateway.temporary_scopes

    def routes(self) -> tuple[Route, ...]:
        act = Access.ACT
        return (
            get("/scopes", act, self._list, "Scopes in force with their servers.", command="taskgate scopes served"),
            post(
                "/scopes",
                act,
                self._hand_over,
                "Create a temporary scope.",
                _WISH,
                status=201,
                command="taskgate scopes hand-over FILE",
            ),
            get("/scopes/{name}", act, self._show, "One scope.", command="taskgate scopes explain {name}"),
            delete("/scopes/{name}", act, self._delete, "End a temporary scope.", command="taskgate scopes end {name}"),
        )

    async def _list(self, visit: Visit) -> Answer:
        return json_answer({"scopes": [self._row(name) for name in self._records.scopes(visit.who)]})

    async def _show(self, visit: Visit) -> Answer:
        name = visit.values["name"]
        return (
            json_answer(self._row(name)) if self._records.has_scope(visit.who, name) else problem(404, _NO_SUCH_SCOPE)
        )

    async def _delete(self, visit: Visit) -> Answer:
        return await self._end(visit.values["name"], visit.who)

    async def _hand_over(self, visit: Visit) -> Answer:
        who, said = visit.who, visit.request.json()
        config, label = said.get("config"), said.get("label", "")
        lifetime_ms = said.get("lifetime_ms", DEFAULT_LIFETIME_MS)
        if set(said) - _KEYS or type(config) is not dict or not all(type(text) is str for text in config.values()):
            raise ValueError('send "config" (a map of strings) and optionally "lifetime_ms" and "label"')
        if type(lifetime_ms) is not int or type(label) is not str:
            raise ValueError("lifetime_ms must be a whole number and label a string")
        try:
            handed = await self._temporary.hand_over(
                self._gateway.plan.value, config, lifetime_ms, label=label, by=who.id
            )
        except TaskConfigError as error:
            return json_answer({"error": error.message, **error.data}, 400)
        row = self._row(handed.scope.name)
        return json_answer({**row, "url": self._url(handed.scope.name), "token": handed.token}, 201)

    async def _end(self, name: str, who: Approver) -> Answer:
        if not self._records.has_scope(who, name):
            return problem(404, _NO_SUCH_SCOPE)
        if await self._temporary.end(name, who.id):
            return json_answer({"scope": name, "ended_by": who.id})
        if self._gateway.has_scope(name):
            return problem(409, "This scope is defined in the configuration file; remove it there.")
        return problem(404, _NO_SUCH_SCOPE)

    def _row(self, name: str) -> dict[str, Any]:
        """What a scope comes to now: its servers, and the reason for each that is left out."""
        plan = self._gateway.plan.value
        policy = plan.scopes[name]
        facts = facts_of(self._gateway.lookup.views.subset(plan, name, NO_WISH))
        found: dict[str, Any] = {
            "scope": name,
            "address": "/mcp" if name == plan.default_scope else f"/mcp/{name}",
            "mode": policy.mode.value,
            "names": policy.names.value,
            "servers": facts["servers"],
            "excluded": facts["excluded"],
            "problems": [wrong.message for wrong in check(policy, plan.registry)],
            "temporary": name in plan.temporary_scopes,
        }
        scope = self._temporary.find(name)
        if scope is not None:
            found |= {
                "label": scope.label,
                "created_by": scope.created_by,
                "created_at": iso(scope.created_ms),
                "expires_at": iso(scope.expires_ms),
                "config": scope.config,
            }
        return found

    def _url(self, name: str) -> str:
        return f"{self._gateway.address.base()}/mcp/{name}"
