"""Send a request to its server: prepare the call, wait for a slot of the server, and record the links in its result."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from taskgate.core.catalog.links import MARK
from taskgate.core.wire import Members
from taskgate.gateway.catalog.returned_uris import ReturnedUris
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.relay.relay import Relay
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.requests.caller_keys import fair_key
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.turns import LARGE_BYTES


class Sending(msgspec.Struct, frozen=True):
    """What is needed to send a request: servers, relay, queues, and which caller was given which link."""

    plan: Live[Plan]
    upstreams: Live[Mapping[str, Upstream]]
    relay: Relay
    budgets: Budgets
    returned_uris: ReturnedUris

    def prepared(self, request: Request, server: str, method: str, params: Members, name: str) -> UpstreamCall:
        """The upstream call of a request that is not a tool call."""
        timeout_s = self.plan.value.timeout_of(server)
        return self.relay.call_for(
            request, self.upstreams.value[server], method, params, name=name, timeout_s=timeout_s
        )

    async def carry(self, request: Request, server: str, call: UpstreamCall) -> bytes:
        """Send the request, after waiting for a slot if the server has `max_concurrency`. Tool calls use the same queue (see
        `call_tool`).
        """
        upstream = self.upstreams.value[server]
        queue = self.budgets.queues.get(server) if self.budgets.queues else None
        if queue is None:
            return (await self.relay.carry(request, upstream, call)).raw
        async with queue.slot(fair_key(request)):
            return (await self.relay.carry(request, upstream, call)).raw

    async def note_links(self, request: Request, server: str, result: bytes) -> None:
        """Record the links in a result: its caller may read them."""
        if len(result) >= LARGE_BYTES:
            await self.returned_uris.note_large(fair_key(request), request.caller.scope, server, result)
        elif MARK in result:
            self.returned_uris.note(fair_key(request), request.caller.scope, server, result)

    def note_given(self, request: Request, server: str, uris: list[str]) -> None:
        """The same for URIs that are known without parsing the result."""
        self.returned_uris.note_uris(fair_key(request), request.caller.scope, server, uris)

    def handed_out_by(self, request: Request, uri: str) -> str | None:
        """The server whose result contained this URI for this caller."""
        return self.returned_uris.owner(fair_key(request), request.caller.scope, uri)
