"""Open, adopt and end the sessions of stateful callers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.generations.stateful import read_initialize
from taskgate.core.identity.caller import Caller
from taskgate.core.scoping.scope import FACADE_MODES
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import NotAllowed, Reason, Subset
from taskgate.core.wire import Message
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.methods.caller_notifications import handle_notification
from taskgate.gateway.methods.handshake import initialize_result
from taskgate.gateway.methods.session_ends import SessionEnds
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.own_tools.shown_tools import callable_families
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.replies import shutting_down
from taskgate.gateway.requests.session import Session
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.gateway.scope_record import facts_of
from taskgate.gateway.status import GatewayStatus
from taskgate.ports.upstream import Upstream
from taskgate.store.operations.shared_sessions import AdoptSession
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics


class CallerSessions(msgspec.Struct, eq=False, kw_only=True):
    plan: Live[Plan]
    status: GatewayStatus
    upstreams: Live[Mapping[str, Upstream]]
    lookup: Lookup
    table: SessionTable
    ends: SessionEnds
    shared: SharedSessions | None
    """None when no other gateway can continue a session of this one."""
    activity: Activity
    metrics: Metrics
    denials: Denials

    async def initialize(
        self, message: Message, caller: Caller, narrowing: SessionRequest, old_stdio: bool = False
    ) -> tuple[Session, bytes]:
        """Open a session and return it with the `initialize` reply.

        Raises NotAllowed if the caller requests servers outside its scope.
        """
        if self.status.stopping:
            raise shutting_down(message)
        opening = read_initialize(message.params, old_stdio)
        requested = narrowing.narrowed(SessionRequest.from_meta(_meta(message)))
        subset = self.admit(caller, requested)
        result = await initialize_result(self.lookup, caller.scope, subset.servers, opening.version)
        unused = self.table.replaceable(caller)
        if unused is not None:
            await self.ends.end(unused)
        session = self.table.open(caller, opening, requested, clock.monotonic())
        if self.shared is not None:
            await self.shared.opened(session)
        self._equip(session)
        log.info(
            "session opened", principal=caller.principal, client=opening.client_info.get("name"), **facts_of(subset)
        )
        return session, wire.success(message.id or b"null", result)

    def _equip(self, session: Session) -> None:
        """Give a session what its scope provides: the inbox, and an activity feed in the facade modes."""
        scope = self.plan.value.scopes[session.caller.scope]
        if callable_families(scope):
            session.use_inbox()
        if scope.mode in FACADE_MODES:
            self.activity.open(session.conversation, session.caller.scope)

    async def adopt(self, session_id: str, former: str) -> Session | None:
        """Continue a session of a dead gateway. None if that gateway is alive, or if another gateway adopted the session first."""
        assert self.shared is not None
        kept = await self.shared.rows.do(AdoptSession(session_id, former))
        if kept is None or kept.scope not in self.plan.value.scopes:
            return None
        session = self.shared.restored(kept)
        self._equip(session)
        return session

    def admit(self, caller: Caller, narrowing: SessionRequest) -> Subset:
        """Return the part of its scope that the caller selects. Raises NotAllowed if it selects more than the scope allows."""
        try:
            return self.lookup.views.subset(self.plan.value, caller.scope, narrowing, strict=True)
        except NotAllowed as problem:
            # Callers choose these names: they must not become metric labels.
            self.metrics.denied_reason.add("", Reason.NOT_ALLOWED.value)
            self.denials.session_refused(caller, problem)
            raise

    def touch(self, session: Session) -> None:
        session.touch(clock.monotonic())

    async def end(self, session: Session) -> None:
        await self.ends.end(session)

    async def notified(self, session: Session, message: Message) -> None:
        """Handle a notification from a stateful caller."""
        await handle_notification(self.lookup, self.upstreams.value, session, message)


def _meta(message: Message) -> Mapping[str, object]:
    meta = (message.params or {}).get("_meta")
    return meta if type(meta) is dict else {}
