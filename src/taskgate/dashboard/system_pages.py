"""System, scopes and the waterfall: versions, store, limits and configuration; what each scope sees and why not more; and what
the latest requests did, filtered.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from taskgate import __version__, clock
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.catalog.rendering import STATELESS_AUDIENCE
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.decision import Denied
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import Caller
from taskgate.core.identity.identity import tenant_of
from taskgate.core.identity.roles import Permission
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.session_request import NO_WISH
from taskgate.core.waterfall import KEPT, Span, Window, in_window, svg
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import ROWS, Route, Visit, closed_object, form_route, get, page_route, post
from taskgate.dashboard.web import Answer, json_answer, problem, redirect, with_query
from taskgate.gateway.services.console import ConsoleServices

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame

BYTES_A_TOKEN: Final = 4
"""A rule of thumb for JSON; every model counts differently."""
TOOLS_SHOWN: Final = 200
TEXT_SHOWN: Final = 20_000
_FILTERS: Final = ("server", "caller", "name", "state")
_ZOOM: Final = ("trace", "from", "to")
_SPANS_QUERY: Final = {
    **{name: f"requests with a call whose {name} contains this text" for name in _FILTERS},
    "minutes": "of the last minutes",
    "trace": "the request with this id, and its calls",
    "from": "ran after this time, in milliseconds since 1970; together with to",
    "to": "ran before this time",
    "limit": f"maximum number, up to {KEPT}",
}


class System:
    def __init__(self, gateway: ConsoleServices, records: Records, configuration: Configuration) -> None:
        self._gateway = gateway
        self._records = records
        self._store = gateway.tasks.store
        self.configuration = configuration

    def row(self) -> dict[str, Any]:
        plan, shown = self._gateway.plan.value, self.configuration.shown()
        return {
            "version": __version__,
            "python": platform.python_version(),
            "profile": plan.gates.profile.value,
            "plan_revision": plan.revision,
            "policy_revision": plan.gates.revision,
            "store": {"owner": self._store.ownership.owner, "trouble": self._store.trouble},
            "replicas": [self._replica(one) for one in self._store.replicas],
            "limits": self._limits(),
            "configuration": {"path": shown.path, "problems": list(shown.problems)},
        }

    def _replica(self, one: Any) -> dict[str, Any]:
        return {
            "owner": one.owner,
            "address": one.address,
            "version": one.version,
            "started_ms": one.started_ms,
            "seen_ms": one.seen_ms,
        }

    def _limits(self) -> list[dict[str, Any]]:
        limits, gateway = self._gateway.limits, self._gateway
        in_use = (
            ("calls_in_flight", len(gateway.admission.open_calls), limits.calls_in_flight),
            ("sessions", len(gateway.sessions), limits.sessions),
        )
        return [{"limit": name, "in_use": used, "of": most} for name, used, most in in_use]

    async def reload(self, by: str) -> str | None:
        await self._store.record_now(AuditEntry(0, "configuration_reloaded", by, kind="configuration"))
        return await self.configuration.reload()

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/system",
                Access.SEE,
                self._show,
                "Versions, store, replicas, limits and configuration problems.",
                command="taskgate status",
            ),
            post(
                "/system/reload",
                Access.CONFIGURE,
                self._reload,
                "Reload the configuration file.",
                closed_object(),
                command="taskgate reload",
            ),
            get(
                "/scopes/{name}/tools",
                Access.ACT,
                self._scope,
                "Tools of a scope, their size in tools/list, and what is excluded.",
                command="taskgate scopes explain {name}",
            ),
            get(
                "/waterfall",
                Access.SEE,
                self._waterfall,
                "Recent requests and their server calls.",
                answer=ROWS,
                query=_SPANS_QUERY,
            ),
        )

    async def _show(self, _visit: Visit) -> Answer:
        return json_answer(self.row())

    async def _reload(self, visit: Visit) -> Answer:
        wrong = await self.reload(visit.who.id)
        return json_answer({"reloaded": True}) if wrong is None else problem(409, wrong)

    async def _scope(self, visit: Visit) -> Answer:
        found = await self.scope(visit.who, visit.values["name"])
        return json_answer(found) if found is not None else problem(404, "Scope not found.")

    async def _waterfall(self, visit: Visit) -> Answer:
        asked = visit.asked("limit") or str(KEPT)
        if not (asked.isascii() and asked.isdigit()) or len(asked) > 9 or not 0 < int(asked) <= KEPT:
            raise ValueError(f"limit must be a whole number from 1 to {KEPT}")
        return json_answer([span.shown() for span in self.spans(visit)[-int(asked) :]])

    async def scope(self, who: Approver, name: str) -> dict[str, Any] | None:
        """What it sees, how large that is in a list, and why it does not see the rest."""
        plan = self._gateway.plan.value
        if name not in plan.scopes or not self._records.has_scope(who, name):
            return None
        view = await self._gateway.lookup.views.view(plan, Caller(scope=name), NO_WISH)
        size = sum(len(entry) for entry in view.listing(EntryKind.TOOL, STATELESS_AUDIENCE))
        left_out = [
            {"what": f"{server}:{tool}", "why": why.reason.value if why is not None else "hidden"}
            for server, tool in view.withheld.get(PatternKind.TOOL, ())
            for why in (view.subset.explain(server, tool),)
        ]
        left_out += [
            {"what": f"{server}:{tool}", "why": "omitted"}
            for server, omitted in view.omitted.items()
            for tool in sorted(omitted.names)
        ]
        denied = [tool for tool in view.tools.values() if isinstance(tool.decision, Denied)]
        left_out += [{"what": f"{tool.server}:{tool.name}", "why": "rule_denied"} for tool in denied]
        left_out += [{"what": line.subject, "why": line.reason.value} for line in view.subset.log]
        shown = [tool for tool in view.tools.values() if not isinstance(tool.decision, Denied)]
        return {
            "scope": name,
            "address": "/mcp" if name == plan.default_scope else f"/mcp/{name}",
            "mode": view.scope.mode.value,
            "servers": list(view.subset.servers),
            "tools": [{"name": tool.wire, "server": tool.server, "rule": tool.decision.rule} for tool in shown],
            "bytes": size,
            "tokens": size // BYTES_A_TOKEN,
            "left_out": left_out,
        }

    async def scopes(self, who: Approver) -> list[dict[str, Any]]:
        names = self._records.scopes(who)
        return [found for name in names if (found := await self.scope(who, name)) is not None]

    def spans(self, visit: Visit) -> list[Span]:
        """The latest, of a time or the last minutes if asked, that fit what was asked for, with the calls that they caused."""
        wanted = {name: value for name in _FILTERS if (value := visit.asked(name)) is not None}
        now = clock.wall()
        window = chosen_window(visit) or Window(now - 60 * _minutes(visit.asked("minutes")), float("inf"))
        recent = in_window(self._records.spans(visit.who), window, now)
        trace = visit.asked("trace")
        if trace is not None:
            recent = [span for span in recent if trace in (str(span.number), str(span.parent))]
        if not wanted:
            return recent
        hits = {
            span.parent or span.number
            for span in recent
            if all(value.casefold() in getattr(span, name).casefold() for name, value in wanted.items())
        }
        return [span for span in recent if span.number in hits or span.parent in hits]


class SystemPages:
    def __init__(self, system: System, frame: Frame) -> None:
        self._system = system
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/system", Access.SEE, self._show),
            form_route("/system/reload", Access.CONFIGURE, self._reload),
            page_route("/scopes", Access.ACT, self._scopes),
            page_route("/scopes/{name}", Access.ACT, self._scope),
            page_route("/waterfall", Access.SEE, self._waterfall),
        )

    async def _show(self, visit: Visit, note: str | None = None, note_kind: str = "") -> Answer:
        shown = self._system.configuration.shown()
        if note is None and visit.asked("done") == "reload":
            note = "Configuration reloaded."
        return await self._frame.page(
            visit,
            "system",
            "system.html",
            note=note,
            note_kind=note_kind,
            row=self._system.row(),
            text=shown.text[:TEXT_SHOWN] if visit.who.may(Permission.ACT) and not tenant_of(visit.who.id) else None,
            left_out=max(0, len(shown.text) - TEXT_SHOWN),
            may_reload=visit.who.may(Permission.CONFIGURE),
        )

    async def _reload(self, visit: Visit) -> Answer:
        wrong = await self._system.reload(visit.who.id)
        return redirect("/system?done=reload") if wrong is None else await self._show(visit, wrong, "bad")

    async def _scopes(self, visit: Visit) -> Answer:
        rows = [
            {**row, "page": f"/scopes/{quote(row['scope'], safe='')}"} for row in await self._system.scopes(visit.who)
        ]
        return await self._frame.page(visit, "scopes", "scopes.html", rows=rows)

    async def _scope(self, visit: Visit) -> Answer:
        name = visit.values["name"]
        row = await self._system.scope(visit.who, name)
        if row is None:
            return self._frame.message(visit.request, visit.who, 404, "Scope not found", "It may have ended.")
        return await self._frame.page(
            visit,
            "scopes",
            "scope.html",
            title=name,
            api=f"/api/v1/scopes/{quote(name, safe='')}/tools",
            command=self._frame.command_for("GET", "/api/v1/scopes/{name}/tools", name=name),
            row=row,
            tools=row["tools"][:TOOLS_SHOWN],
            left_out=row["left_out"][:TOOLS_SHOWN],
        )

    async def _waterfall(self, visit: Visit) -> Answer:
        try:
            spans = self._system.spans(visit)
        except ValueError as error:
            return self._frame.message(visit.request, visit.who, 400, "Invalid filter", str(error))
        asked = {name: visit.asked(name) or "" for name in (*_FILTERS, "minutes")}
        given = {**asked, **{name: visit.asked(name) or "" for name in _ZOOM}}
        drawing = svg(spans, clock.wall(), chosen_window(visit))
        return await self._frame.page(
            visit,
            "waterfall",
            "waterfall.html",
            drawing=drawing,
            asked=asked,
            zoomed=any(given[name] for name in _ZOOM),
            out=with_query("/waterfall", asked),
            api=with_query("/api/v1/waterfall", given),
        )


def chosen_window(visit: Visit) -> Window | None:
    """The part of the time axis that somebody chose, in milliseconds since 1970."""
    begin, end = visit.asked("from"), visit.asked("to")
    if begin is None and end is None:
        return None
    try:
        window = Window(float(begin or "") / 1000, float(end or "") / 1000)
    except ValueError:
        window = Window(0, 0)
    if not 0 < window.begin < window.end < 1e11:
        raise ValueError("from and to must be times in milliseconds since 1970, from before to")
    return window


def _minutes(asked: str | None) -> float:
    if asked is None:
        return 24 * 60
    if not (asked.isascii() and asked.isdigit()) or len(asked) > 4 or int(asked) < 1:
        raise ValueError("minutes must be a whole number from 1 to 9999")
    return int(asked)
