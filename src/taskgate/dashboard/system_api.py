"""Version, store, replicas, limits and configuration of the gateway as JSON, and the reload of the configuration."""

from __future__ import annotations

import platform
from collections.abc import Sized
from typing import Any

from taskgate import __version__
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.identity.access import Access
from taskgate.dashboard import reply_schemas
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.routes import Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.plan import Live, Plan
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.store import Store


@dataclass(slots=True, eq=False, kw_only=True)
class System:
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
                answer=reply_schemas.SYSTEM,
            ),
            post(
                "/system/reload",
                Access.CONFIGURE,
                self._reload,
                "Reload the configuration file.",
                closed_object(),
                command="taskgate reload",
                answer=reply_schemas.RELOADED,
            ),
        )

    def row(self) -> dict[str, Any]:
        plan, shown = self.plan.value, self.configuration.shown()
        return {
            "version": __version__,
            "python": platform.python_version(),
            "profile": plan.gates.profile.value,
            "plan_revision": plan.revision,
            "policy_revision": plan.gates.revision,
            "store": {
                "owner": self.store.ownership.owner,
                "problem": self.store.problem,
                "trouble": self.store.problem,
            },
            "replicas": [self._replica(one) for one in self.store.replicas],
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
        limits = self.plan.value.limits
        in_use = (
            ("calls_in_flight", len(self.open_calls), limits.calls_in_flight),
            ("sessions", len(self.sessions), limits.sessions),
        )
        return [{"limit": name, "in_use": used, "of": maximum} for name, used, maximum in in_use]

    async def reload(self, by: str) -> str | None:
        await self.store.record_now(AuditEntry(0, "configuration_reloaded", by, kind="configuration"))
        return await self.configuration.reload()

    async def _show(self, _visit: Visit) -> Answer:
        return json_answer(self.row())

    async def _reload(self, visit: Visit) -> Answer:
        error = await self.reload(visit.user.id)
        return json_answer({"reloaded": True}) if error is None else problem(409, error)
