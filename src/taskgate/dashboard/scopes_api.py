"""Scopes as JSON, for operators: list, show, create a temporary one, end it."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.catalog.rendering import STATELESS_AUDIENCE
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.decision import Denied
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import Caller
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.scope import check
from taskgate.core.scoping.session_request import NO_REQUEST
from taskgate.core.scoping.task_config import TaskConfigError
from taskgate.core.timestamps import iso
from taskgate.dashboard.ports import ScopeViews, StubsOfScope, TemporaryScopes
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import (
    OBJECT,
    TEXT,
    Route,
    Visit,
    closed_object,
    delete,
    get,
    post,
)
from taskgate.dashboard.web import Answer, RequestProblem, json_answer, problem
from taskgate.gateway.catalog.view import View
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.scope_record import facts_of
from taskgate.replies.fields import extended
from taskgate.replies.scopes import (
    LeftOut,
    MeasuredScope,
    ScopeCreated,
    ScopeEnded,
    ScopeRow,
    Scopes,
    ScopeTool,
    ScopeTools,
    StubsSize,
)

BYTES_A_TOKEN: Final = 4
"""An estimate for JSON; models differ."""
DEFAULT_LIFETIME_MS: Final = 60 * 60 * 1000
_NO_SUCH_SCOPE: Final = "Scope not found."
_NEW_SCOPE: Final = closed_object(("config",), config=OBJECT, lifetime_ms={"type": "integer"}, label=TEXT)
_KEYS: Final = frozenset({"config", "lifetime_ms", "label"})


class ScopesApi(msgspec.Struct, eq=False, kw_only=True):
    plan: Live[Plan]
    views: ScopeViews
    temporary: TemporaryScopes
    stubs: StubsOfScope
    address: PublicAddress
    records: Records

    def routes(self) -> tuple[Route, ...]:
        act = Access.ACT
        return (
            get(
                "/scopes",
                act,
                self._list,
                "Scopes in force with their servers.",
                command="taskgate scopes served",
                answer=Scopes,
            ),
            post(
                "/scopes",
                act,
                self._hand_over,
                "Create a temporary scope.",
                _NEW_SCOPE,
                status=201,
                command="taskgate scopes hand-over FILE",
                answer=ScopeCreated,
            ),
            get(
                "/scopes/{name}",
                act,
                self._show,
                "One scope.",
                command="taskgate scopes explain {name}",
                answer=ScopeRow,
            ),
            get(
                "/scopes/{name}/tools",
                act,
                self._tools,
                "Tools of a scope, their size in tools/list, and what is excluded.",
                command="taskgate scopes explain {name}",
                answer=ScopeTools,
            ),
            delete(
                "/scopes/{name}",
                act,
                self._delete,
                "End a temporary scope.",
                command="taskgate scopes end {name}",
                answer=ScopeEnded,
            ),
        )

    async def _list(self, visit: Visit) -> Answer:
        return json_answer(Scopes(scopes=await self.listed(visit.user)))

    async def _tools(self, visit: Visit) -> Answer:
        return json_answer(await self.tools(visit.user, visit.values["name"]))

    async def listed(self, user: Approver) -> list[MeasuredScope]:
        """Every scope that this person may see, with the size of its tools/list."""
        rows = []
        for name in self.records.scopes(user):
            tools = await self._listed_tools(user, name)
            rows.append(
                extended(
                    MeasuredScope,
                    self._row(name),
                    tool_count=len(tools.tools),
                    left_out_count=len(tools.left_out),
                    list_bytes=tools.bytes,
                    list_tokens=tools.tokens,
                )
            )
        return rows

    async def tools(self, user: Approver, name: str) -> ScopeTools:
        """The tools of a scope, their size in tools/list and as stubs for scripts, and what is excluded for which reason.

        Raises RequestProblem.
        """
        listed, view = await self._listed_tools(user, name), await self._view(user, name)
        if not view.scope.scripts:
            return listed
        caller = Caller(scope=name)
        stubs = await self.stubs(await self.views.view(view.plan, caller, NO_REQUEST, from_script=True))
        size = StubsSize(tools=stubs.tools, bytes=stubs.size, tokens=stubs.size // BYTES_A_TOKEN)
        return msgspec.structs.replace(listed, script_stubs=size)

    async def _view(self, user: Approver, name: str) -> View:
        plan = self.plan.value
        if name not in plan.scopes or not self.records.has_scope(user, name):
            raise RequestProblem(404, _NO_SUCH_SCOPE)
        return await self.views.view(plan, Caller(scope=name), NO_REQUEST)

    async def _listed_tools(self, user: Approver, name: str) -> ScopeTools:
        view, plan = await self._view(user, name), self.plan.value
        entries = view.listing(EntryKind.TOOL, STATELESS_AUDIENCE)
        size = sum(map(len, entries.between(0, len(entries))))
        left_out = [
            LeftOut(what=f"{server}:{tool}", why=why.reason.value if why is not None else "hidden")
            for server, tool in view.withheld.get(PatternKind.TOOL, ())
            for why in (view.subset.explain(server, tool),)
        ]
        left_out += [
            LeftOut(what=f"{server}:{tool}", why="omitted")
            for server, omitted in view.omitted.items()
            for tool in sorted(omitted.names)
        ]
        denied = [tool for tool in view.tools.values() if isinstance(tool.decision, Denied)]
        left_out += [LeftOut(what=f"{tool.server}:{tool.name}", why="rule_denied") for tool in denied]
        left_out += [LeftOut(what=line.subject, why=line.reason.value) for line in view.subset.log]
        shown = [tool for tool in view.tools.values() if not isinstance(tool.decision, Denied)]
        return ScopeTools(
            scope=name,
            address=_path(plan, name),
            mode=view.scope.mode,
            servers=view.subset.servers,
            tools=[ScopeTool(name=tool.wire, server=tool.server, rule=tool.decision.rule) for tool in shown],
            bytes=size,
            tokens=size // BYTES_A_TOKEN,
            script_stubs=None,
            left_out=left_out,
        )

    async def _show(self, visit: Visit) -> Answer:
        name = visit.values["name"]
        return (
            json_answer(self._row(name)) if self.records.has_scope(visit.user, name) else problem(404, _NO_SUCH_SCOPE)
        )

    async def _delete(self, visit: Visit) -> Answer:
        return await self._end(visit.values["name"], visit.user)

    async def _hand_over(self, visit: Visit) -> Answer:
        user, body = visit.user, visit.request.json()
        config, label = body.get("config"), body.get("label", "")
        lifetime_ms = body.get("lifetime_ms", DEFAULT_LIFETIME_MS)
        if set(body) - _KEYS or type(config) is not dict or not all(type(text) is str for text in config.values()):
            raise ValueError('send "config" (a map of strings) and optionally "lifetime_ms" and "label"')
        if type(lifetime_ms) is not int or type(label) is not str:
            raise ValueError("lifetime_ms must be a whole number and label a string")
        try:
            created = await self.temporary.hand_over(self.plan.value, config, lifetime_ms, label=label, by=user.id)
        except TaskConfigError as error:
            return json_answer({"error": error.message, **error.data}, 400)
        row = self._row(created.scope.name)
        return json_answer(extended(ScopeCreated, row, url=self._url(created.scope.name), token=created.token), 201)

    async def _end(self, name: str, user: Approver) -> Answer:
        if not self.records.has_scope(user, name):
            return problem(404, _NO_SUCH_SCOPE)
        if await self.temporary.end(name, user.id):
            return json_answer(ScopeEnded(scope=name, ended_by=user.id))
        if name in self.plan.value.scopes:
            return problem(409, "This scope is defined in the configuration file; remove it there.")
        return problem(404, _NO_SUCH_SCOPE)

    def _row(self, name: str) -> ScopeRow:
        """The scope with its servers, and the reason for each excluded one."""
        plan = self.plan.value
        policy = plan.scopes[name]
        facts = facts_of(self.views.subset(plan, name, NO_REQUEST))
        row = ScopeRow(
            scope=name,
            address=_path(plan, name),
            mode=policy.mode,
            names=policy.names.value,
            servers=facts["servers"],
            excluded=facts["excluded"],
            problems=[wrong.message for wrong in check(policy, plan.registry)],
            temporary=name in plan.temporary_scopes,
        )
        scope = self.temporary.find(name)
        if scope is None:
            return row
        return msgspec.structs.replace(
            row,
            label=scope.label,
            created_by=scope.created_by,
            created_at=iso(scope.created_ms),
            expires_at=iso(scope.expires_ms),
            config=scope.config,
        )

    def _url(self, name: str) -> str:
        return f"{self.address.base()}/mcp/{name}"


def _path(plan: Plan, scope: str) -> str:
    return "/mcp" if scope == plan.default_scope else f"/mcp/{scope}"
