"""Find skills of stdio servers that declare them only in the stateless generation.

Such a server was listed in the stateful generation. It is connected as a call of this caller would do it, and listed again if it
then uses the stateless generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from taskgate.core.catalog.skills import declares_skills
from taskgate.core.errors import TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.plan import Live
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.logs import log

_STDIO: Final = "stdio"


class SkillDiscovery(msgspec.Struct, frozen=True):
    lookup: Lookup
    upstreams: Live[Mapping[str, Upstream]]
    _tried: dict[str, str] = msgspec.field(default_factory=dict)
    """The fingerprints of servers that were connected for this purpose."""
    _running: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    def is_needed(self, servers: tuple[str, ...]) -> bool:
        """Whether one of these servers may have skills that are not known yet."""
        return any(self._may_have_skills(server) for server in servers)

    def _may_have_skills(self, server: str) -> bool:
        offer, upstream = self.lookup.catalogs.offer(server), self.upstreams.value.get(server)
        if offer is None or upstream is None or upstream.transport != _STDIO:
            return False
        stateful = offer.generation is Generation.STATEFUL and not declares_skills(offer.capabilities)
        return stateful and self._tried.get(server) != upstream.fingerprint

    async def run(self, request: Request) -> None:
        """Connect to such servers, and list those again that use the stateless generation."""
        if request.generation is not Generation.STATELESS:
            return
        lookup = self.lookup
        servers = lookup.views.subset(lookup.plan.value, request.caller.scope, request.narrowing).servers
        await lookup.catalogs.settled(servers, listing=True)
        if not self.is_needed(servers):
            return
        async with self._running:
            connecting = (self._connect(request, server) for server in servers if self._may_have_skills(server))
            again = [server for server in await asyncio.gather(*connecting) if server is not None]
            if again:
                await lookup.catalogs.ready(again)

    async def _connect(self, request: Request, server: str) -> str | None:
        """Return the server if it must be listed again."""
        upstream = self.upstreams.value[server]
        try:
            link = await upstream.link(request.link_key, request.delivery.profile)
        except TaskgateError as problem:
            log.info("skills not listed", server=server, why=problem.message)
            return None
        finally:
            self._tried[server] = upstream.fingerprint
        if link.generation is not Generation.STATELESS:
            return None
        self.lookup.catalogs.changed(server)
        return server
