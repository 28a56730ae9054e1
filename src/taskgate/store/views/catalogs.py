"""The view of a store that keeps the last known lists of servers (`ports.catalog_store`)."""

from __future__ import annotations

from collections.abc import Iterable

from taskgate.ports.catalog_store import KeptCatalog
from taskgate.ports.topics import LISTS, list_hint
from taskgate.store.batch_writer import DeferredWrite
from taskgate.store.transaction import Transaction
from taskgate.store.views.base import StoreView


class CatalogView(StoreView):
    def keep_catalog(self, catalog: KeptCatalog) -> None:
        def write(tx: Transaction) -> None:
            if tx.changes_one(
                "keep_catalog",
                server=catalog.server,
                fingerprint=catalog.fingerprint,
                listed_ms=catalog.listed_ms,
                body=catalog.body,
            ):
                tx.announce(LISTS, catalog.server)
            else:
                tx.run("confirm_catalog", server=catalog.server, listed_ms=catalog.listed_ms)

        self._defer(DeferredWrite(write))

    def announce_lists(self, server: str, kinds: Iterable[str]) -> None:
        names = (server, *(list_hint(server, kind) for kind in kinds))

        def write(tx: Transaction) -> None:
            for name in names:
                tx.announce(LISTS, name)

        # Not guarded: an announcement of a gateway that was declared dead is not out of date.
        self._engine.defer(DeferredWrite(write))

    def catalog_confirmed(self, server: str, listed_ms: int) -> None:
        def write(tx: Transaction) -> None:
            tx.run("confirm_catalog", server=server, listed_ms=listed_ms)

        self._defer(DeferredWrite(write))

    async def kept_catalogs(self) -> tuple[KeptCatalog, ...]:
        return await self._read(lambda reader: reader.catalogs())

    def forget_catalog(self, server: str) -> None:
        def write(tx: Transaction) -> None:
            tx.run("forget_catalog", server=server)

        self._defer(DeferredWrite(write))
