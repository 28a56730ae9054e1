"""What applying a configuration uses: at the start, and at each reload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskgate.gateway.changes import Configured, Reload
from taskgate.gateway.governance.announce import Announcer
from taskgate.gateway.governance.standing_grants import KnownPeople
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.plan import Plan, PublicAddress
from taskgate.ports.upstream import Listener, Upstream


@dataclass(slots=True, eq=False, kw_only=True)
class ConfigurationServices:
    address: PublicAddress
    people: KnownPeople
    temporary_scopes: TemporaryScopes
    announcer: Announcer
    """Sends approval requests to the configured channels."""
    listener: Listener
    """Receives what the servers send outside a request."""
    reload: Reload

    def adopt(self, plan: Plan, upstreams: Mapping[str, Upstream], changed: frozenset[str]) -> None:
        """Put a reloaded plan in force. `changed` names the servers that are new or configured differently."""
        self.reload.adopt(Configured(plan, upstreams), changed)
