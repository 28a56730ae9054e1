"""Version, store, replicas, limits and configuration of the gateway as JSON, and the reload of the configuration."""

from __future__ import annotations

import platform
from collections.abc import Sized

import msgspec

from taskgate import __version__
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.identity.access import Access
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.routes import Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.store import Store
from taskgate.replies.system import ConfigurationState, LimitInUse, Reloaded, ReplicaRow, StoreStatus, SystemState
from taskgate.store.operations.audit import RecordAudit


class System(msgspec.Struct, eq=False, kw_only=True):
    plan: Live[Plan]
    store: Store
    open_calls: Sized
    sessions: Sized
    configuration: Configuration

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/system",
                Access.SEE,
                self._show,
                "Versions, store, replicas, limits and configuration problems.",
                command="taskgate status",
                answer=SystemState,
            ),
            post(
                "/system/reload",
                Access.CONFIGURE,
                self._reload,
                "Reload the configuration file.",
                closed_object(),
                command="taskgate reload",
                answer=Reloaded,
            ),
        )

    def row(self) -> SystemState:
        plan, shown = self.plan.value, self.configuration.shown()
        problem, limits = self.store.problem, plan.limits
        return SystemState(
            version=__version__,
            python=platform.python_version(),
            profile=plan.gates.profile.value,
            plan_revision=plan.revision,
            policy_revision=plan.gates.revision,
            store=StoreStatus(owner=self.store.ownership.owner, problem=problem, trouble=problem),
            replicas=[
                ReplicaRow(
                    owner=one.owner,
                    address=one.address,
                    version=one.version,
                    started_ms=one.started_ms,
                    seen_ms=one.seen_ms,
                )
                for one in self.store.replicas
            ],
            limits=[
                LimitInUse(limit="calls_in_flight", in_use=len(self.open_calls), of=limits.calls_in_flight),
                LimitInUse(limit="sessions", in_use=len(self.sessions), of=limits.sessions),
            ],
            configuration=ConfigurationState(path=shown.path, problems=shown.problems),
        )

    async def reload(self, by: str) -> str | None:
        await self.store.do(RecordAudit(AuditEntry(0, "configuration_reloaded", by, kind="configuration")))
        return await self.configuration.reload()

    async def _show(self, _visit: Visit) -> Answer:
        return json_answer(self.row())

    async def _reload(self, visit: Visit) -> Answer:
        error = await self.reload(visit.user.id)
        return json_answer(Reloaded(reloaded=True)) if error is None else problem(409, error)
