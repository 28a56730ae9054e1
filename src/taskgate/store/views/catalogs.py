"""The view of a store that keeps the servers' last known lists (`ports.catalog_store`)."""

from __future__ import annotations

from taskgate.ports.replicas import LISTS
from taskgate.ports.store import KeptCatalog
from taskgate.store.batch import DeferredWrite
from taskgate.store.operations.transaction import Transaction
from taskgate.store.views.base import StoreView


class CatalogView(StoreView):
    def keep_catalog(self, catalog: KeptCatalog) -> None:
        def write(tx: Transaction) -> None:
            tx.run(
                "keep_catalog",
                server=catalog.server,
                fingerprint=catalog.fingerprint,
                listed_ms=catalog.listed_ms,
                body=catalog.body,
            )
            tx.announce(LISTS, catalog.server)

        self._defer(DeferredWrite(write))

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
