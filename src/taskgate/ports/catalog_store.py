"""The last known lists of every server, so that a gateway that starts has something to show before any server answers.

A catalog is a copy: it may be lost without harm, and it says how old it is. What its body means is the gateway's business.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class KeptCatalog(msgspec.Struct, frozen=True):
    """`fingerprint` tells which configuration of the server it belongs to, `listed_ms` when the server was last asked."""

    server: str
    fingerprint: str
    listed_ms: int
    body: bytes


class CatalogStore(Protocol):
    def keep_catalog(self, catalog: KeptCatalog) -> None:
        """Write soon, in place of what was kept for that server before."""
        ...

    def catalog_confirmed(self, server: str, listed_ms: int) -> None:
        """The server was asked again and offers the same: only the age changes. Written soon."""
        ...

    async def kept_catalogs(self) -> tuple[KeptCatalog, ...]: ...

    def forget_catalog(self, server: str) -> None:
        """Soon."""
        ...
