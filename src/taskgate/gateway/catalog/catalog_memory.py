"""The last known lists of every server, from one run of the gateway to the next.

What is kept belongs to one configuration of its server: a server of the same name with another address or command starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskgate.core.errors import GatewayFault
from taskgate.gateway.catalog.offer import Offer, from_bytes, to_bytes
from taskgate.ports.catalog_store import CatalogStore, KeptCatalog
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.logs import log

MOST_BYTES: Final = 16 * 1024 * 1024


class CatalogMemory:
    def __init__(self, store: CatalogStore) -> None:
        self._store = store
        self._kept: dict[str, tuple[str, bytes]] = {}

    async def restore(self, upstreams: Mapping[str, Upstream]) -> dict[str, Offer]:
        """What was known of these servers, as they are configured now; anything else is forgotten."""
        found: dict[str, Offer] = {}
        for kept in await self._store.kept_catalogs():
            upstream = upstreams.get(kept.server)
            same = upstream is not None and upstream.fingerprint == kept.fingerprint
            offer = from_bytes(kept.server, kept.body, kept.listed_ms) if same else None
            if offer is None:
                self._store.forget_catalog(kept.server)
                continue
            self._kept[kept.server] = (kept.fingerprint, kept.body)
            found[kept.server] = offer
        return found

    def keep(self, upstream: Upstream, offer: Offer) -> None:
        """Nobody waits for it, and it may be lost: a store in trouble is not a reason to show nothing."""
        body = to_bytes(offer)
        if len(body) > MOST_BYTES:
            return
        try:
            if self._kept.get(upstream.id) == (upstream.fingerprint, body):
                self._store.catalog_confirmed(upstream.id, offer.listed_ms)
                return
            self._store.keep_catalog(KeptCatalog(upstream.id, upstream.fingerprint, offer.listed_ms, body))
            self._kept[upstream.id] = (upstream.fingerprint, body)
        except GatewayFault as problem:
            log.warning("lists not kept", server=upstream.id, why=problem.message)

    def forget(self, server: str) -> None:
        self._kept.pop(server, None)
        try:
            self._store.forget_catalog(server)
        except GatewayFault as problem:
            log.warning("kept lists not forgotten", server=server, why=problem.message)
