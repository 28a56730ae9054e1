"""Store the last lists of each server, so that a restarted gateway can serve them before the server is reachable."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Final

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import GatewayFault
from taskgate.gateway.catalog.offer import Offer
from taskgate.gateway.catalog.offer_codec import from_bytes, to_bytes
from taskgate.ports.store import Store
from taskgate.ports.upstream import Upstream
from taskgate.store.operations.catalogs import (
    AnnounceLists,
    ConfirmCatalog,
    ForgetCatalog,
    KeepCatalog,
    KeptCatalog,
    KeptCatalogs,
)
from taskgate.telemetry.logs import log

MAX_BYTES: Final = 16 * 1024 * 1024


class CatalogMemory:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._stored: dict[str, tuple[str, bytes]] = {}
        """By server: the fingerprint of its configuration, and the digest of its stored lists."""

    async def restore(self, upstreams: Mapping[str, Upstream]) -> dict[str, Offer]:
        """Load the stored lists of these servers as they are configured now, and delete all others."""
        found: dict[str, Offer] = {}
        for kept in await self._store.ask(KeptCatalogs()):
            upstream = upstreams.get(kept.server)
            same = upstream is not None and upstream.fingerprint == kept.fingerprint
            offer = from_bytes(kept.server, kept.body, kept.listed_ms) if same else None
            if offer is None:
                self._store.defer(ForgetCatalog(kept.server))
                continue
            self._stored[kept.server] = (kept.fingerprint, sha256(kept.body).digest())
            found[kept.server] = offer
        return found

    def announce(self, server: str, kinds: Collection[EntryKind]) -> None:
        """Announce a list change to the other gateways on the store, even if this gateway sees no difference: another one may be
        connected to another process of the server, or may have fetched in between."""
        try:
            self._store.defer(AnnounceLists(server, sorted(kinds)))
        except GatewayFault as problem:
            log.warning("changed lists not announced", server=server, why=problem.message)

    def keep(self, upstream: Upstream, offer: Offer) -> None:
        """Store lists in the background. A failure is tolerated: the lists are shown anyway."""
        body = to_bytes(offer)
        if len(body) > MAX_BYTES:
            return
        stored = (upstream.fingerprint, sha256(body).digest())
        try:
            if self._stored.get(upstream.id) == stored:
                self._store.defer(ConfirmCatalog(upstream.id, offer.listed_ms))
                return
            self._store.defer(KeepCatalog(KeptCatalog(upstream.id, upstream.fingerprint, offer.listed_ms, body)))
            self._stored[upstream.id] = stored
        except GatewayFault as problem:
            log.warning("lists not kept", server=upstream.id, why=problem.message)

    def forget(self, server: str) -> None:
        self._stored.pop(server, None)
        try:
            self._store.defer(ForgetCatalog(server))
        except GatewayFault as problem:
            log.warning("kept lists not forgotten", server=server, why=problem.message)
