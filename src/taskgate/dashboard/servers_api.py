"""Servers as JSON: state, tools, budgets, and the actions reconnect, drain and enable.

Draining removes a server from every scope while running calls finish; it lasts until the server is enabled or the gateway restarts.
Reconnecting connects immediately, regardless of the back-off. Each action is recorded in the audit log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import TaskgateError
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.waterfall import Span
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.ports import ServerDraining, ServerLists, ServerQueues
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.pinned_definitions import PinnedDefinitions
from taskgate.ports.store import Store
from taskgate.ports.upstream import Upstream
from taskgate.replies.fields import extended
from taskgate.replies.servers import BudgetsInUse, ListReport, ServerAction, ServerDetail, ServerRow, ServerTool
from taskgate.store.operations.audit import RecordAudit

STDERR_LINES: Final = 20
ACTIONS: Final = {"reconnect": "reconnected", "drain": "drained", "enable": "enabled"}
_NO_SUCH_SERVER: Final = "Server not found."


class Servers(msgspec.Struct, eq=False, kw_only=True):
    plan: Live[Plan]
    upstreams: Live[Mapping[str, Upstream]]
    lists: ServerLists
    pins: PinnedDefinitions
    draining: ServerDraining
    budgets: ServerQueues
    audit_log: Store
    records: Records
    configuration: Configuration

    def rows(self, user: Approver) -> list[ServerRow]:
        """Every server with recent latencies, and whether it is drained."""
        recent = self._recent_calls(user)
        return [self._row(name, upstream, recent.get(name, ())) for name, upstream in self.upstreams.value.items()]

    def _row(self, name: str, upstream: Upstream, calls: Sequence[Span]) -> ServerRow:
        # Errors and stderr may contain secrets from commands and addresses.
        hide, status = self.configuration.hidden, upstream.status()
        ordered = sorted((span.end - span.start) * 1000 for span in calls)
        last = len(ordered) - 1
        return ServerRow(
            name=name,
            transport=upstream.transport,
            state=status.state.value,
            generations=[generation.value for generation in status.generations],
            reconnect_attempt=status.reconnect_attempt,
            next_retry_ms=status.next_retry_ms,
            last_error=status.last_error and hide(status.last_error),
            stderr=[hide(line) for line in status.stderr[-STDERR_LINES:]],
            drained=name in self.draining.drained,
            tool_count=self._tool_count(name),
            calls=len(ordered),
            errors=sum(1 for span in calls if span.state == "error"),
            p50_ms=round(ordered[last // 2], 1) if ordered else None,
            p99_ms=round(ordered[round(last * 0.99)], 1) if ordered else None,
        )

    def _tool_count(self, name: str) -> int | None:
        """None while the server has not returned its list."""
        offer = self.lists.offer(name)
        return len(offer.entries.get(EntryKind.TOOL, ())) if offer is not None else None

    def _recent_calls(self, user: Approver) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = {}
        for span in self.records.spans(user):
            if span.server and span.end:
                found.setdefault(span.server, []).append(span)
        return found

    async def one(self, user: Approver, name: str) -> ServerDetail | None:
        row = next((row for row in self.rows(user) if row.name == name), None)
        if row is None:
            return None
        plan, line = self.plan.value, self.budgets.queues.get(name)
        record = plan.registry.records.get(name)
        budgets = record.budgets if record is not None else None
        return extended(
            ServerDetail,
            row,
            lists=self._list_report(name),
            budgets=BudgetsInUse(
                timeout_ms=int(plan.timeout_of(name) * 1000),
                max_concurrency=budgets.max_concurrency if budgets is not None else None,
                max_tool_output_bytes=budgets.max_tool_output_bytes if budgets is not None else None,
                running=line.running if line is not None else None,
                waiting=line.waiting if line is not None else None,
            ),
            tools=self._tools(name),
            accounts=await self.records.accounts(user, name),
        )

    def _list_report(self, name: str) -> ListReport:
        report = msgspec.convert(self.lists.report(name), ListReport)
        if report.problem is UNSET:
            return report
        return msgspec.structs.replace(report, problem=self.configuration.hidden(report.problem))

    def _tools(self, name: str) -> list[ServerTool]:
        offer = self.lists.offer(name)
        changed = {row.tool: row for row in self.pins.changed_rows() if row.server == name}
        entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
        return [
            ServerTool(
                name=entry.name,
                digest=entry.digest,
                changed=entry.name in changed,
                quarantined=entry.name in changed and changed[entry.name].quarantined,
            )
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
        await self.audit_log.do(RecordAudit(entry))
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
                answer=list[ServerRow],
            ),
            get(
                "/servers/{name}",
                Access.SEE,
                self._show,
                "One server with its tools, lists and budgets.",
                command="taskgate servers show {name}",
                answer=ServerDetail,
            ),
            post(
                "/servers/{name}/reconnect",
                act,
                self._reconnect,
                "Connect now instead of waiting for the back-off.",
                none,
                command="taskgate servers reconnect {name}",
                answer=ServerAction,
            ),
            post(
                "/servers/{name}/drain",
                act,
                self._drain,
                "Remove a server from every scope; running calls finish.",
                none,
                command="taskgate servers drain {name}",
                answer=ServerAction,
            ),
            post(
                "/servers/{name}/enable",
                act,
                self._enable,
                "Add a drained server back to its scopes.",
                none,
                command="taskgate servers enable {name}",
                answer=ServerAction,
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
        return json_answer(ServerAction(name=name, done=ACTIONS[action])) if error is None else problem(502, error)
