"""Put another plan in force while the gateway runs. Only this module replaces the plan and the upstreams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.configured_servers import ConfiguredServers
from taskgate.gateway.dynamic_servers import DynamicServers
from taskgate.gateway.events import EventHub, PlanReplaced, ScopesChanged, TemporaryScopesChanged
from taskgate.gateway.governance.annotation_report import AnnotationReport
from taskgate.gateway.governance.known_people import FOR_EVER_MS, KnownPeople
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.governance.unsafe_config import warn_unsafe_config
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.separated import SeparatedServers
from taskgate.gateway.requests.admission import Admission
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.scope_record import ScopeRecord
from taskgate.ports.store import Store
from taskgate.ports.upstream import Upstream
from taskgate.store.operations.identity_records import IdentityRecord, IdentityRecords, KeepIdentityRecord

SERVER: Final = "server"
"""Kind of the stored record of drained servers."""
_DRAINED: Final = b"drained"


class Configured(msgspec.Struct, frozen=True):
    """The operator's configuration, without servers that callers added."""

    plan: Plan
    upstreams: Mapping[str, Upstream]


class Reload(msgspec.Struct, eq=False, kw_only=True):
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
    annotations: AnnotationReport
    store: Store
    separated: SeparatedServers
    events: EventHub
    drained: frozenset[str] = frozenset()
    """Servers that an operator removed from every scope until they are enabled again; without a shared store until a restart."""

    def adopt(self, configured: Configured, changed: frozenset[str]) -> None:
        """Put a plan in force from the next request on. Requests in progress continue under the old one."""
        before = self.plan.value
        self.configured = configured
        plan, upstreams = self.dynamic_servers.merged(configured.plan, configured.upstreams)
        plan = self._without_drained(plan)
        plan = self.temporary_scopes.merged(replace(plan, revision=max(plan.revision, before.revision + 1)))
        plan = self.people.merged(plan)
        self.plan.replace(plan)
        self.upstreams.replace(ConfiguredServers(upstreams))
        self.separated.apply()
        self.catalogs.adopt(changed, plan.limits)
        self.activity.adopt(plan.limits)
        self.budgets.adopt(plan)
        self.admission.adopt(plan.limits)
        self.scope_record.start_over()
        if before.gates is not plan.gates:
            self.pins.adopt(self.catalogs.offers())
            self.annotations.adopt(self.catalogs.offers)
            warn_unsafe_config(plan.gates, self.store)
        if before.registry is not plan.registry or before.scopes != plan.scopes or before.gates is not plan.gates:
            self.events.publish(ScopesChanged())
        self.events.publish(PlanReplaced())

    async def drain(self, name: str, *, drained: bool) -> None:
        """Remove a server from every scope, or restore it, at every gateway on the store. Its connections and calls in progress
        continue."""
        if self.store.revisions is not None:
            body = _DRAINED if drained else b""
            until_ms = FOR_EVER_MS if drained else self.store.now_ms()
            kept = IdentityRecord(kind=SERVER, name=name, principal="", expires_ms=until_ms, body=body)
            await self.store.do(KeepIdentityRecord(kept, announce=True))
        self._adopt_drained(self.drained | {name} if drained else self.drained - {name})

    async def drained_elsewhere(self) -> None:
        """Apply drains and restores by other gateways."""
        kept = await self.store.ask(IdentityRecords(SERVER))
        self._adopt_drained(frozenset(record.name for record in kept if record.body == _DRAINED))

    def _adopt_drained(self, drained: frozenset[str]) -> None:
        if drained != self.drained:
            self.drained = drained
            self.adopt(self.configured, frozenset())

    def _without_drained(self, plan: Plan) -> Plan:
        if not self.drained:
            return plan
        records = plan.registry.records.values()
        kept = [replace(one, enabled=False) if one.id in self.drained else one for one in records]
        return replace(plan, registry=plan.registry.replaced_by(kept))

    def dynamic_servers_changed(self, name: str) -> None:
        """Apply the addition or removal of a server by a caller."""
        self.adopt(self.configured, frozenset({name}))

    async def dynamic_servers_changed_elsewhere(self) -> None:
        """Apply servers added or removed at other gateways."""
        changed = await self.dynamic_servers.synchronize()
        if changed:
            self.adopt(self.configured, changed)

    def temporary_scopes_changed(self, event: TemporaryScopesChanged) -> None:
        """Replace the temporary scopes of the plan. Their names are never reused, so no other view changes."""
        plan, _ = self.dynamic_servers.merged(self.configured.plan, self.configured.upstreams)
        plan = self.temporary_scopes.merged(replace(plan, revision=self.plan.value.revision))
        self.plan.replace(replace(self.plan.value, scopes=plan.scopes, temporary_scopes=plan.temporary_scopes))
        self.views.forget(event.gone)
        self.events.publish(PlanReplaced())
