"""Scopes as JSON, for operators: list, show, create a temporary one, end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.scoping.scope import check
from taskgate.core.scoping.session_request import NO_WISH
from taskgate.core.scoping.task_config import TaskConfigError
from taskgate.core.timestamps import iso
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
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.dynamic_servers import facts_of
from taskgate.gateway.services.console import ConsoleServices

if TYPE_CHECKING:
    pass


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
