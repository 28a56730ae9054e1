"""Create the parts that apply changes: reloads, and what other gateways did."""

from __future__ import annotations

from taskgate.gateway.dynamic_servers import DynamicServers
from taskgate.gateway.events import TemporaryScopesChanged
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.other_gateways import OtherGateways
from taskgate.gateway.reload import Configured, Reload
from taskgate.gateway.requests.admission import Admission
from taskgate.gateway.shared_caches import SharedCaches
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.wiring.foundation import Foundation
from taskgate.gateway.wiring.groups import CatalogGroup, GovernanceGroup, QuestionGroup, TaskGroup


def wire_other_gateways(
    running: TaskGroup, governed: GovernanceGroup, tasks: TaskEngine, caches: SharedCaches | None, lists: CatalogGroup
) -> OtherGateways:
    return OtherGateways(
        wakeups=tasks.store.wakeups,
        records=running.records,
        runs=running.runs,
        questions=running.questions,
        approvals=governed.approvals,
        recovery=tasks.recovery,
        caches=caches,
        catalogs=lists.catalogs,
    )


def wire_reload(
    base: Foundation,
    lists: CatalogGroup,
    asking: QuestionGroup,
    dynamic_servers: DynamicServers,
    temporary_scopes: TemporaryScopes,
) -> Reload:
    admission = Admission(base.plan.value.limits, base.metrics)
    base.metrics.show(*admission.gauges())
    reload = Reload(
        configured=Configured(base.plan.value, base.upstreams.value),
        plan=base.plan,
        upstreams=base.upstreams,
        dynamic_servers=dynamic_servers,
        temporary_scopes=temporary_scopes,
        people=base.people,
        views=lists.views,
        catalogs=lists.catalogs,
        activity=asking.activity,
        budgets=base.budgets,
        admission=admission,
        scope_record=lists.scope_record,
        pins=lists.pins,
        annotations=lists.annotations,
        store=base.store,
        separated=base.separated,
        events=base.events,
    )
    base.events.subscribe(TemporaryScopesChanged, reload.temporary_scopes_changed)
    return reload
