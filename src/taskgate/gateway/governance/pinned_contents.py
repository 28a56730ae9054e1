"""Reading interfaces to compare them with their pins: whenever a caller reads one, and once by ourselves when it is first declared.

Nothing that was not compared is handed to a caller. By the gateway's own reading a change is noticed, and its end, without waiting
for a caller. It is done in the background; an interface that cannot be read then is compared when a caller reads it.
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
from taskgate.ports.upstream import LISTING_PROFILE, Result, Upstream, own_call
from taskgate.telemetry.logs import log

MOST_READ: Final = 200
"""Interfaces of one server that are read by ourselves."""
_NONE: Final = Raw(b"[]")


class PinnedContents:
    def __init__(self, pins: Pins, upstreams: Live[Mapping[str, Upstream]], plan: Live[Plan], events: EventHub) -> None:
        self._pins = pins
        self._upstreams = upstreams
        self._plan = plan
        self._looked: dict[str, set[str]] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        events.subscribe(ListsFetched, self._lists_fetched)

    async def check(self, server: str, uri: str, result: bytes) -> None:
        """What reading a resource gave, on its way to a caller. Raises CallerError where it may not be handed out."""
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
        self._looked.setdefault(server, set()).add(uri)
        definition = content_definition(uri, contents, self._pins.listed(server, uri))
        return self._pins.permits_content(server, uri, definition)

    # Reading by ourselves

    def _lists_fetched(self, event: ListsFetched) -> None:
        server = event.server
        if self._plan.value.governing.pins is PinMode.OFF:
            return
        if event.changed:
            self._looked.pop(server, None)
        looking = self._looking.get(server)
        if self._wanted(server) and (looking is None or looking.done()):
            self._looking[server] = asyncio.get_running_loop().create_task(self._look(server))

    def _wanted(self, server: str) -> list[str]:
        """Those that were not looked at since the lists changed, and those that wait to be accepted."""
        looked = self._looked.get(server, set())
        found = [u for u in self._pins.interfaces(server) if u not in looked or self._pins.is_unaccepted(server, u)]
        return found[:MOST_READ]

    async def _look(self, server: str) -> None:
        try:
            for uri in self._wanted(server):
                await self._read(server, uri)
        except TaskgateError as problem:
            log.info("interfaces not read", server=server, why=problem.message)
        except Exception as fault:  # one background job: callers' own reading compares what this one did not
            log.error("interfaces not read", server=server, exc_info=fault)

    async def _read(self, server: str, uri: str) -> None:
        upstream = self._upstreams.value.get(server)
        if upstream is None:
            return
        link = await upstream.listening_link()
        timeout_s = self._plan.value.limits.tools_fetch_timeout_s
        call = own_call("resources/read", {"uri": wire.raw(uri)}, LISTING_PROFILE, timeout_s, name=uri)
        reply = await link.request(call)
        if isinstance(reply, Result):
            await self._permitted(server, uri, reply.raw)
        else:
            self._looked.setdefault(server, set()).add(uri)

    async def close(self) -> None:
        for looking in self._looking.values():
            looking.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)
