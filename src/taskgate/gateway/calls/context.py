"""What the use cases share, and the tool behind a name, if this caller may know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.validate import Completions, HandedOut, Validation
from taskgate.gateway.catalog.views import ToolRef, View, Views
from taskgate.gateway.dynamic_servers import DynamicServers
from taskgate.gateway.governance.ask_caller import ByUrl
from taskgate.gateway.governance.call_log import CallLog
from taskgate.gateway.governance.gate import CallGate, HeldReadings
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.relay import Relay
from taskgate.gateway.requests.admission import Budgets
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.sessions import SessionTable
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    live_plan: Live[Plan]
    live_upstreams: Live[Mapping[str, Upstream]]
    catalogs: Catalogs
    views: Views
    relay: Relay
    sessions: SessionTable
    tasks: TaskEngine
    metrics: Metrics
    budgets: Budgets
    activity: Activity
    gate: CallGate
    by_url: ByUrl
    held_readings: HeldReadings
    call_log: CallLog
    validation: Validation
    completions: Completions
    handed_out: HandedOut
    dynamic_servers: DynamicServers
    dynamic_servers_changed: Callable[[str], None]

    @property
    def plan(self) -> Plan:
        return self.live_plan.value

    @property
    def upstreams(self) -> Mapping[str, Upstream]:
        return self.live_upstreams.value

    def view_of(self, request: Request) -> View:
        """The view a request was found in; only to be asked for after the view was built."""
        view = self.views.current(self.plan, request.caller, request.narrowing)
        assert view is not None
        return view

    def count_validation_error(self, error: str) -> None:
        self.metrics.validation_errors.add(error)

    def warn(self, event: str, **facts: object) -> None:
        log.warning(event, **facts)


# The tool behind a name, if this caller may know of it. Hidden, denied and unknown names get one and the same answer.
#
# What a caller names may be newer than the lists: before it is refused, those servers are asked again that it may
# belong to.


async def look_for_name(context: Context, request: Request, view: View, name: str) -> View | None:
    """A view that may know the name now, or None where there is no reason to hope for one."""
    return await _asked_again(context, request, view.may_have(name))


async def look_for_uri(context: Context, request: Request, view: View) -> View | None:
    """The same for a URI, which names no server: those may have it that have resources, or have not said what they have."""
    able = [
        server
        for server in view.subset.servers
        if context.catalogs.offer(server) is None or "resources" in view.capabilities.get(server, {})
    ]
    return await _asked_again(context, request, able)


async def _asked_again(context: Context, request: Request, servers: tuple[str, ...] | list[str]) -> View | None:
    if not await context.catalogs.look_again(servers):
        return None
    return await context.views.view(context.plan, request.caller, request.narrowing)


async def find_tool(context: Context, request: Request, name: str) -> ToolRef:
    """The tool behind a name, if this caller may know of it."""
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    tool = view.tool(name)
    if tool is None or tool.entry is None:
        tool = await _listed_late(context, request, view, name)
    if tool is None:
        raise unknown_tool(name)
    return tool


async def _listed_late(context: Context, request: Request, view: View, name: str) -> ToolRef | None:
    """The name may be newer than the lists, or its server was away: that is a reason to ask again those that it may belong to."""
    server = view.server_named_in(name)
    found = (await look_for_name(context, request, view, name) or view).tool(name)
    if found is None and server is not None and context.catalogs.offer(server) is None:
        raise context.catalogs.failure(server) or _not_listed(server)
    return found


def _not_listed(server: str) -> UpstreamError:
    return UpstreamError(
        "upstream_unreachable",
        f"The server {server} has not said yet what it offers. The call was not executed; try again later.",
        executed=Executed.NO,
    )


def unknown_tool(name: str) -> CallerError:
    return CallerError(
        "unknown_tool",
        f"There is no tool {name[:120]!r} here. tools/list shows what can be called.",
        data={"tool": name[:120]},
    )
