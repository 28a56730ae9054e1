"""Compare interfaces with their pins: whenever a caller reads one, and once by the gateway when it is first declared.

A caller never gets content that was not compared. The gateway's own reading, in the background, detects a change and its end
without waiting for a caller; an interface that cannot be read then is compared when a caller reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from taskgate.core import wire
from taskgate.core.catalog.pin import PinMode
from taskgate.core.catalog.pinned_content import content_definition
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.wire import Raw
from taskgate.gateway.events import EventHub, ListsFetched
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.large_results import elements_of, members_of
from taskgate.ports.client_profile import LISTING_PROFILE
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_call import own_call
from taskgate.ports.upstream_replies import Result
from taskgate.telemetry.logs import log

MAX_READ: Final = 200
"""Maximum number of interfaces per server that the gateway reads itself."""
_NONE: Final = Raw(b"[]")


class PinnedContents:
    def __init__(self, pins: Pins, upstreams: Live[Mapping[str, Upstream]], plan: Live[Plan], events: EventHub) -> None:
        self._pins = pins
        self._upstreams = upstreams
        self._plan = plan
        self._compared: dict[str, set[str]] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        events.subscribe(ListsFetched, self._lists_fetched)

    async def check(self, server: str, uri: str, result: bytes) -> None:
        """Compare the result of a `resources/read` with its pin. Raises CallerError if it may not be returned to the caller."""
        if not self._pins.is_interface(server, uri) or self._plan.value.governing.pins is PinMode.OFF:
            return
        if await self._permitted(server, uri, result):
            return
        raise CallerError(
            "unknown_resource",
            "This interface is not what was accepted; an operator must accept its new content before it is shown.",
            data={"uri": uri[:500]},
        )

    async def _permitted(self, server: str, uri: str, result: bytes) -> bool:
        members = await members_of(result)
        contents = [wire.parse_strictly(bytes(each)) for each in await elements_of(members.get("contents", _NONE))]
        self._compared.setdefault(server, set()).add(uri)
        definition = content_definition(uri, contents, self._pins.listed(server, uri))
        return self._pins.permits_content(server, uri, definition)

    def _lists_fetched(self, event: ListsFetched) -> None:
        server = event.server
        if self._plan.value.governing.pins is PinMode.OFF:
            return
        if event.changed:
            self._compared.pop(server, None)
        reader = self._readers.get(server)
        if self._uris_to_pin(server) and (reader is None or reader.done()):
            self._readers[server] = asyncio.get_running_loop().create_task(self._read_all(server))

    def _uris_to_pin(self, server: str) -> list[str]:
        """Return the interfaces not compared since the lists changed, and those not accepted."""
        compared = self._compared.get(server, set())
        found = [u for u in self._pins.interfaces(server) if u not in compared or self._pins.is_unaccepted(server, u)]
        return found[:MAX_READ]

    async def _read_all(self, server: str) -> None:
        try:
            for uri in self._uris_to_pin(server):
                await self._read(server, uri)
        except TaskgateError as problem:
            log.info("interfaces not read", server=server, why=problem.message)
        except (
            Exception
        ) as fault:  # one background job: interfaces it did not read are compared when a caller reads them
            log.error("interfaces not read", server=server, exc_info=fault)

    async def _read(self, server: str, uri: str) -> None:
        upstream = self._upstreams.value.get(server)
        if upstream is None:
            return
        link = await upstream.listening_link()
        timeout_s = self._plan.value.limits.tools_fetch_timeout_ms / 1000
        call = own_call("resources/read", {"uri": wire.raw(uri)}, LISTING_PROFILE, timeout_s, name=uri)
        reply = await link.request(call)
        if isinstance(reply, Result):
            await self._permitted(server, uri, reply.raw)
        else:
            self._compared.setdefault(server, set()).add(uri)

    async def close(self) -> None:
        for reader in self._readers.values():
            reader.cancel()
        await asyncio.gather(*self._readers.values(), return_exceptions=True)
