"""Version, store, replicas, limits and configuration of the gateway as JSON, and the reload of the configuration."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from taskgate import __version__
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.identity.access import Access
from taskgate.dashboard import reply_schemas
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.routes import Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.services.console import ConsoleServices

if TYPE_CHECKING:
    pass


class System:
    def __init__(self, services: ConsoleServices, configuration: Configuration) -> None:
        self._services = services
        self._store = services.tasks.store
        self.configuration = configuration

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
        plan, shown = self._services.plan.value, self.configuration.shown()
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
        limits, gateway = self._services.limits, self._services
        in_use = (
            ("calls_in_flight", len(gateway.admission.open_calls), limits.calls_in_flight),
            ("sessions", len(gateway.sessions), limits.sessions),
        )
        return [{"limit": name, "in_use": used, "of": most} for name, used, most in in_use]

    async def reload(self, by: str) -> str | None:
        await self._store.record_now(AuditEntry(0, "configuration_reloaded", by, kind="configuration"))
        return await self.configuration.reload()

    async def _show(self, _visit: Visit) -> Answer:
        return json_answer(self.row())

    async def _reload(self, visit: Visit) -> Answer:
        error = await self.reload(visit.who.id)
        return json_answer({"reloaded": True}) if error is None else problem(409, error)
