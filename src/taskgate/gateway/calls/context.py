"""What the use cases share: the plan in force, the upstreams, their lists, the way to carry things, and the sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.completions import Completions
from taskgate.gateway.catalog.handed_out import HandedOut
from taskgate.gateway.catalog.validate import Validation
from taskgate.gateway.catalog.views import View, Views
from taskgate.gateway.governance.by_url import ByUrl
from taskgate.gateway.governance.call_log import CallLog
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.governance.held_readings import HeldReadings
from taskgate.gateway.plan.dynamic_servers import DynamicServers
from taskgate.gateway.plan.plan import Live, Plan
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.relay.relay import Relay
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
