"""Fetch the lists of a configuration's servers, for commands that show or check them without serving anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from taskgate.assembly.channels import Outbound
from taskgate.assembly.server_accounts import accounts_of
from taskgate.assembly.server_specs import NullListener, intake_within, server_specs
from taskgate.config.load import LoadedConfig
from taskgate.core.settings.limits import Limits
from taskgate.gateway.catalog.catalogs import Catalogs, listed_only
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.upstreams.server import Server


@asynccontextmanager
async def listed_servers(loaded: LoadedConfig, limits: Limits, chosen: Collection[str]) -> AsyncIterator[Catalogs]:
    """Connect to the chosen servers, fetch their lists, and disconnect at the end. A server that fails does not affect the others;
    `Catalogs.failure` has the reason."""
    http = HttpClient(max_response_bytes=limits.result_bytes, max_event_bytes=limits.result_bytes)
    reaper, listener, intake = Reaper(), NullListener(), intake_within(limits)
    outbound = Outbound()
    specs = server_specs(loaded, accounts_of(loaded, outbound))
    servers = {name: Server(specs[name], listener, http, reaper, intake) for name in chosen if name in specs}
    catalogs = listed_only(servers, limits)
    try:
        await catalogs.ready(servers)
        yield catalogs
    finally:
        await catalogs.close()
        await asyncio.gather(*(server.close() for server in servers.values()), return_exceptions=True)
        await http.close()
        await outbound.close()
        await reaper.close()
