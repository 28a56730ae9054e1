"""Servers that callers added, shared by all gateways on a store."""

from __future__ import annotations

from typing import Protocol

import msgspec


class KeptServer(msgspec.Struct, frozen=True):
    """A server that a caller added. It is visible in `scope`."""

    name: str
    scope: str
    body: bytes


class ServerStore(Protocol):
    """Servers that callers added."""

    async def keep_server(self, server: KeptServer) -> bool:
        """Store a server; return False if there is one with this name."""
        ...

    async def forget_server(self, name: str) -> bool:
        """Delete a server; return whether there was one."""
        ...

    async def kept_servers(self) -> tuple[KeptServer, ...]: ...
