"""The last known lists of every server, so that a gateway that starts can show them before any server is connected.

A catalog is a cache: losing it does no harm, and it records its age. Its body is opaque to the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec


class KeptCatalog(msgspec.Struct, frozen=True):
    """`fingerprint` identifies the configuration of the server, `listed_ms` is the time of its last reply."""

    server: str
    fingerprint: str
    listed_ms: int
    body: bytes


class CatalogStore(Protocol):
    def keep_catalog(self, catalog: KeptCatalog) -> None:
        """Replace the catalog of that server with the next commit."""
        ...

    def announce_lists(self, server: str, kinds: Iterable[str]) -> None:
        """Notify the other gateways on this store that the server reported changes of these lists."""
        ...

    def catalog_confirmed(self, server: str, listed_ms: int) -> None:
        """Update the age with the next commit: the server has returned the same lists again."""
        ...

    async def kept_catalogs(self) -> tuple[KeptCatalog, ...]: ...

    def forget_catalog(self, server: str) -> None:
        """Delete it with the next commit."""
        ...
