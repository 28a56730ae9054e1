"""The steps of starting, maintaining and closing a gateway, in the order in which they must run."""

from __future__ import annotations

import asyncio

import msgspec

from taskgate import clock
from taskgate.gateway.dynamic_servers import DynamicServers
from taskgate.gateway.methods.session_ends import SessionEnds
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.other_gateways import OtherGateways
from taskgate.gateway.questions.shared_inbox import SharedInbox
from taskgate.gateway.relay.suspended_calls import SuspendedCalls
from taskgate.gateway.scripts.script_runs import ScriptRuns
from taskgate.gateway.services.lifecycle import Step
from taskgate.gateway.shared_caches import SharedCaches
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.task_metrics import TaskMetrics
from taskgate.gateway.wiring.foundation import Foundation
from taskgate.gateway.wiring.groups import CatalogGroup, GovernanceGroup, QuestionGroup, TaskGroup


class LifecycleSteps(msgspec.Struct, frozen=True, kw_only=True):
    base: Foundation
    lists: CatalogGroup
    asking: QuestionGroup
    running: TaskGroup
    governed: GovernanceGroup
    tasks: TaskEngine
    task_metrics: TaskMetrics
    temporary_scopes: TemporaryScopes
    caches: SharedCaches | None
    session_ends: SessionEnds
    shared_sessions: SharedSessions | None
    shared_inbox: SharedInbox | None
    others: OtherGateways
    suspended: SuspendedCalls
    scripts: ScriptRuns
    dynamic_servers: DynamicServers

    def start(self) -> tuple[Step, ...]:
        """What the store holds is loaded first: catalogs and shared sessions depend on it."""
        return (
            self.temporary_scopes.start,
            self.base.people.load,
            self.base.separated.load,
            self.lists.pins.load,
            self.governed.approvals.start,
            *((self.caches.load_all,) if self.caches is not None else ()),
            self.lists.catalogs.start,
            self._start_sharing,
        )

    async def _start_sharing(self) -> None:
        if self.shared_sessions is not None:
            self.shared_sessions.start()
        if self.shared_inbox is not None:
            self.shared_inbox.start()

    def refresh(self) -> tuple[Step, ...]:
        return (
            self.task_metrics.refresh,
            self._refresh_presence,
            self.tasks.deadlines.enforce_deadlines,
            self.tasks.recovery.resume_interrupted,
            self.temporary_scopes.end_expired,
        )

    async def _refresh_presence(self) -> None:
        self.running.presence.maintain()

    def reap(self) -> tuple[Step, ...]:
        return (self._end_idle, self._refresh_shared_rows)

    async def _end_idle(self) -> None:
        await self.session_ends.reap(clock.monotonic())
        self.asking.activity.reap(clock.monotonic())
        for upstream in self.base.upstreams.value.values():
            await upstream.end_idle()

    async def _refresh_shared_rows(self) -> None:
        if self.shared_sessions is not None:
            await self.shared_sessions.maintain(self.base.store.now_ms())
        if self.shared_inbox is not None:
            await self.shared_inbox.maintain(self.base.store.now_ms())

    def close(self) -> tuple[Step, ...]:
        """Tasks and sessions are closed before what they may still need: suspended calls, models, elicitation pages, catalogs."""
        return (
            self.lists.contents.close,
            self.lists.pins.close,
            self.lists.annotations.close,
            self.lists.unmatched.close,
            self.governed.ask_caller.close,
            self.others.close,
            *((self.shared_sessions.close,) if self.shared_sessions is not None else ()),
            *((self.shared_inbox.close,) if self.shared_inbox is not None else ()),
            self.governed.approvals.close,
            self.scripts.close,
            self.tasks.close,
            self.session_ends.close,
            self.suspended.close,
            self.asking.models.close,
            self.asking.server_pages.close,
            self.asking.activity.close,
            self.dynamic_servers.close,
            self.lists.catalogs.close,
        )

    async def close_tracing(self) -> None:
        """Export what was recorded, after the sessions with servers have ended."""
        if self.base.tracing is not None:
            await asyncio.to_thread(self.base.tracing.close)
