"""What the inbound transports (HTTP, stdio, local socket) use: sessions, requests, and the settings that concern them."""

from __future__ import annotations

import msgspec

from taskgate.core.settings.limits import Limits
from taskgate.gateway.caller_sessions import CallerSessions
from taskgate.gateway.dispatch import RequestDispatcher
from taskgate.gateway.events import EventHub
from taskgate.gateway.own_tools.shown_tools import callable_families
from taskgate.gateway.own_tools.table import LOCAL_STATE_TOOLS, TOOLS
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.scope_record import scope_hint
from taskgate.gateway.status import GatewayStatus


class TransportServices(msgspec.Struct, eq=False, kw_only=True):
    plan: Live[Plan]
    status: GatewayStatus
    requests: RequestDispatcher
    sessions: CallerSessions
    events: EventHub

    @property
    def limits(self) -> Limits:
        return self.plan.value.limits

    @property
    def default_scope(self) -> str:
        return self.plan.value.default_scope

    def scope_hint(self, requested: str) -> str:
        """Explain to an operator why this scope name is not valid."""
        return scope_hint(self.plan.value, requested)

    def keeps_for_clients(self, scope: str, tool: str) -> bool:
        """Return whether callers of this scope can call this own tool, and its state is held by one gateway."""
        policy = self.plan.value.scopes.get(scope)
        return policy is not None and tool in LOCAL_STATE_TOOLS and TOOLS[tool].face.family in callable_families(policy)
