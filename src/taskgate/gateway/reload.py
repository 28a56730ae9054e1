"""Putting another plan in force while the gateway runs. The only place that replaces the plan and the upstreams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.events.events import EventHub, ScopesChanged, TemporaryScopesChanged
from taskgate.gateway.governance.annotations import Annotations
from taskgate.gateway.governance.approvals import warn_of_loose_ends
from taskgate.gateway.governance.known_people import KnownPeople
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.plan.dynamic_servers import DynamicServers
from taskgate.gateway.plan.plan import Live, Plan
from taskgate.gateway.plan.scope_record import ScopeRecord
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.admission import Admission, Budgets
from taskgate.ports.store import Store
from taskgate.ports.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Configured:
    """What the operator's own configuration comes to, without servers that callers added."""

    plan: Plan
    upstreams: Mapping[str, Upstream]


@dataclass(slots=True, eq=False, kw_only=True)
class Reload:
    configured: Configured
    plan: Live[Plan]
    upstreams: Live[Mapping[str, Upstream]]
    dynamic_servers: DynamicServers
    temporary_scopes: TemporaryScopes
    people: KnownPeople
    views: Views
    catalogs: Catalogs
    activity: Activity
    budgets: Budgets
    admission: Admission
    scope_record: ScopeRecord
    pins: Pins
    annotations: Annotations
    store: Store
    events: EventHub
    drained: frozenset[str] = field(default=frozenset())
    """Servers that somebody took out of every scope, until they are enabled or the gateway is restarted."""

    def __post_init__(self) -> None:
        self.events.subscribe(TemporaryScopesChanged, self._temporary_scopes_changed)

    def adopt(self, configured: Configured, changed: frozenset[str]) -> None:
        """The new plan holds from the next request on; requests under way end under the old one."""
        before = self.plan.value
        self.configured = configured
        plan, upstreams = self.dynamic_servers.merged(configured.plan, configured.upstreams)
        plan = self._without_drained(plan)
        plan = self.temporary_scopes.merged(replace(plan, revision=max(plan.revision, before.revision + 1)))
        plan = self.people.merged(plan)
        self.plan.replace(plan)
        self.upstreams.replace(upstreams)
        self.catalogs.adopt(changed, plan.limits)
        self.activity.adopt(plan.limits)
        self.budgets.adopt(plan)
        self.admission.adopt(plan.limits)
        self.scope_record.start_over()
        if before.gates is not plan.gates:
            self.pins.adopt(self.catalogs.offers())
            self.annotations.adopt(self.catalogs.offers())
            warn_of_loose_ends(plan.gates, self.store)
        if before.registry is not plan.registry or before.scopes != plan.scopes or before.gates is not plan.gates:
            self.events.publish(ScopesChanged())

    def drain(self, name: str, *, drained: bool) -> None:
        """Take a server out of every scope, or put it back. Its connections and the calls under way stay."""
        self.drained = self.drained | {name} if drained else self.drained - {name}
        self.adopt(self.configured, frozenset())

    def _without_drained(self, plan: Plan) -> Plan:
        if not self.drained:
            return plan
        records = plan.registry.records.values()
        kept = [replace(one, enabled=False) if one.id in self.drained else one for one in records]
        return replace(plan, registry=plan.registry.replaced_by(kept))

    def dynamic_servers_changed(self, name: str) -> None:
        """A server was added or removed by a caller: everything else stays as the operator has it."""
        self.adopt(self.configured, frozenset({name}))

    async def dynamic_servers_changed_elsewhere(self) -> None:
        """Another gateway on the same store may have added or removed some."""
        changed = await self.dynamic_servers.synchronize()
        if changed:
            self.adopt(self.configured, changed)

    def _temporary_scopes_changed(self, event: TemporaryScopesChanged) -> None:
        """The same plan with other temporary scopes. Their names are never used twice, so nothing else is worked out anew."""
        plan, _ = self.dynamic_servers.merged(self.configured.plan, self.configured.upstreams)
        plan = self.temporary_scopes.merged(replace(plan, revision=self.plan.value.revision))
        self.plan.replace(replace(self.plan.value, scopes=plan.scopes, temporary_scopes=plan.temporary_scopes))
        self.views.forget(event.gone)
