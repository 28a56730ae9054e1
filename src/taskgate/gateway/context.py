"""What the use cases share: the plan in force, the upstreams, their lists, the way to carry things, and the sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskgate.gateway.catalogs import Catalogs
from taskgate.gateway.plan import Plan
from taskgate.gateway.relay import Relay
from taskgate.gateway.sessions import SessionTable
from taskgate.gateway.views import Views
from taskgate.ports.upstream import Upstream


@dataclass(slots=True)
class Context:
    plan: Plan
    upstreams: Mapping[str, Upstream]
    catalogs: Catalogs
    views: Views
    relay: Relay
    sessions: SessionTable
