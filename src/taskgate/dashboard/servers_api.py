"""Servers as JSON: state, tools, budgets, and the actions reconnect, drain and enable.

Draining removes a server from every scope while running calls finish; it lasts until the server is enabled or the gateway restarts.
Reconnecting connects immediately, regardless of the back-off. Each action is recorded in the audit log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import TaskgateError
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.waterfall import Span
from taskgate.dashboard import reply_schemas
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.ports import ServerDraining, ServerLists, ServerQueues
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, closed_object, get, post
from taskgate.dashboard.server_rows import server_rows
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.plan import Live, Plan
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.audit_log import AuditLog
from taskgate.ports.pinned_definitions import PinnedDefinitions
from taskgate.ports.upstream import Upstream

ACTIONS: Final = {"reconnect": "reconnected", "drain": "drained", "enable": "enabled"}
_NO_SUCH_SERVER: Final = "Server not found."


@dataclass(slots=True, eq=False, kw_only=True)
class Servers:
    plan: Live[Plan]
    upstreams: Live[Mapping[str, Upstream]]
    lists: ServerLists
    pins: PinnedDefinitions
    draining: ServerDraining
    budgets: ServerQueues
    audit_log: AuditLog
    records: Records
    configuration: Configuration

    def rows(self, user: Approver) -> list[dict[str, Any]]:
        """Every server with recent latencies, and whether it is drained."""
        recent = self._recent_calls(user)
        drained = self.draining.drained
        return [
            {
                **self._hidden(row),
                "drained": row["name"] in drained,
                "tool_count": self._tool_count(row["name"]),
                **_measured(recent.get(row["name"], ())),
            }
            for row in server_rows(self.upstreams.value)
        ]

    def _tool_count(self, name: str) -> int | None:
        """None while the server has not returned its list."""
        offer = self.lists.offer(name)
        return len(offer.entries.get(EntryKind.TOOL, ())) if offer is not None else None

    def _hidden(self, row: dict[str, Any]) -> dict[str, Any]:
        """Errors and stderr may contain secrets from commands and addresses, which are redacted."""
        hide, error = self.configuration.hidden, row["last_error"]
        return {**row, "last_error": error and hide(error), "stderr": [hide(line) for line in row["stderr"]]}

    def _recent_calls(self, user: Approver) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = {}
        for span in self.records.spans(user):
            if span.server and span.end:
                found.setdefault(span.server, []).append(span)
        return found

    async def one(self, user: Approver, name: str) -> dict[str, Any] | None:
        row = next((row for row in self.rows(user) if row["name"] == name), None)
        if row is None:
            return None
        plan, line = self.plan.value, self.budgets.queues.get(name)
        record = plan.registry.records.get(name)
        budgets = record.budgets if record is not None else None
        return {
            **row,
            "lists": self._list_report(name),
            "budgets": {
                "timeout_ms": int(plan.timeout_of(name) * 1000),
                "max_concurrency": budgets.max_concurrency if budgets is not None else None,
                "max_tool_output_bytes": budgets.max_tool_output_bytes if budgets is not None else None,
                "running": line.running if line is not None else None,
                "waiting": line.waiting if line is not None else None,
            },
            "tools": self._tools(name),
            "accounts": await self.records.accounts(user, name),
        }

    def _list_report(self, name: str) -> dict[str, Any]:
        report = dict(self.lists.report(name))
        if "problem" in report:
            report["problem"] = self.configuration.hidden(str(report["problem"]))
        return report

    def _tools(self, name: str) -> list[dict[str, Any]]:
        offer = self.lists.offer(name)
        changed = {row["tool"]: row for row in self.pins.changed_rows() if row["server"] == name}
        entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
        return [
            {
                "name": entry.name,
                "digest": entry.digest,
                "changed": entry.name in changed,
                "quarantined": entry.name in changed and changed[entry.name]["quarantined"],
            }
            for entry in entries
        ]

    def may_connect(self, user: Approver) -> bool:
        """Whether this person may connect the account that all callers share."""
        return self.records.may_connect(user, "")

    async def do(self, name: str, action: str, by: str) -> str | None:
        """Run an action; the error text, or None. Raises KeyError for an unknown server."""
        upstream = self.upstreams.value.get(name)
        if upstream is None:
            raise KeyError(name)
        entry = AuditEntry(0, f"server_{ACTIONS[action]}", by, server=name, kind="server")
        await self.audit_log.record_now(entry)
        if action == "reconnect":
            try:
                await upstream.reconnect()
            except TaskgateError as error:
                return self.configuration.hidden(error.message)
            self.lists.changed(name)
        else:
            await self.draining.drain(name, drained=action == "drain")
        return None

    def routes(self) -> tuple[Route, ...]:
        act, none = Access.ACT, closed_object()
        return (
            get(
                "/servers",
                Access.SEE,
                self._list,
                "State, health, latency and recent stderr of every server.",
                command="taskgate servers status",
                answer=reply_schemas.rows(reply_schemas.SERVER),
            ),
            get(
                "/servers/{name}",
                Access.SEE,
                self._show,
                "One server with its tools, lists and budgets.",
                command="taskgate servers show {name}",
                answer=reply_schemas.SERVER_DETAIL,
            ),
            post(
                "/servers/{name}/reconnect",
                act,
                self._reconnect,
                "Connect now instead of waiting for the back-off.",
                none,
                command="taskgate servers reconnect {name}",
                answer=reply_schemas.SERVER_ACTION,
            ),
            post(
                "/servers/{name}/drain",
                act,
                self._drain,
                "Remove a server from every scope; running calls finish.",
                none,
                command="taskgate servers drain {name}",
                answer=reply_schemas.SERVER_ACTION,
            ),
            post(
                "/servers/{name}/enable",
                act,
                self._enable,
                "Add a drained server back to its scopes.",
                none,
                command="taskgate servers enable {name}",
                answer=reply_schemas.SERVER_ACTION,
            ),
        )

    async def _list(self, visit: Visit) -> Answer:
        return json_answer(self.rows(visit.user))

    async def _show(self, visit: Visit) -> Answer:
        row = await self.one(visit.user, visit.values["name"])
        return json_answer(row) if row is not None else problem(404, _NO_SUCH_SERVER)

    async def _reconnect(self, visit: Visit) -> Answer:
        return await self._did(visit, "reconnect")

    async def _drain(self, visit: Visit) -> Answer:
        return await self._did(visit, "drain")

    async def _enable(self, visit: Visit) -> Answer:
        return await self._did(visit, "enable")

    async def _did(self, visit: Visit, action: str) -> Answer:
        if visit.request.json():
            raise ValueError("the body must be an empty object")
        name = visit.values["name"]
        try:
            error = await self.do(name, action, visit.user.id)
        except KeyError:
            return problem(404, _NO_SUCH_SERVER)
        return json_answer({"name": name, "done": ACTIONS[action]}) if error is None else problem(502, error)


def _measured(calls: Sequence[Span]) -> dict[str, Any]:
    """Number, errors and latency percentiles (in milliseconds) of recent calls."""
    if not calls:
        return {"calls": 0, "errors": 0, "p50_ms": None, "p99_ms": None}
    ordered = sorted((span.end - span.start) * 1000 for span in calls)
    last = len(ordered) - 1
    return {
        "calls": len(ordered),
        "errors": sum(1 for span in calls if span.state == "error"),
        "p50_ms": round(ordered[last // 2], 1),
        "p99_ms": round(ordered[round(last * 0.99)], 1),
    }
