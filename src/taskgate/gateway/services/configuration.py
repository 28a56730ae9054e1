"""What applying a configuration uses: at the start, and at each reload."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from taskgate.gateway.governance.announcer import Announcer
from taskgate.gateway.governance.known_people import KnownPeople
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.plan import Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.reload import Configured, Reload
from taskgate.ports.link import Listener
from taskgate.ports.upstream import Upstream


class ConfigurationServices(msgspec.Struct, eq=False, kw_only=True):
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
