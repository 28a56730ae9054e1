"""Marks the configured store as restored from a backup, or as current, while no gateway uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from taskgate.assembly import shared_store
from taskgate.assembly.stores import store_path
from taskgate.config.load import LoadedConfig
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import GatewayFault
from taskgate.core.identity.caller import OPERATOR
from taskgate.core.settings.store import keys_of
from taskgate.ports.store import Store
from taskgate.store.operations.restored import DeclareRestored, TrustRestored
from taskgate.store.sqlite.store import open_store

T = TypeVar("T")


def declare_restored(loaded: LoadedConfig) -> None:
    """Mark the store as restored. Raises GatewayFault."""
    entry = AuditEntry(0, "store_declared_restored", principal=OPERATOR)
    _with_store(loaded, lambda store: store.do(DeclareRestored(entry)))


def trust_restored(loaded: LoadedConfig) -> bool:
    """Mark the store as current; return whether it was marked as restored. Raises GatewayFault."""
    entry = AuditEntry(0, "store_trusted", principal=OPERATOR)
    return _with_store(loaded, lambda store: store.do(TrustRestored(entry)))


def _with_store(loaded: LoadedConfig, act: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        store = _opened(loaded)
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _opened(loaded: LoadedConfig) -> Store:
    url = shared_store.shared_url(loaded)
    if url is None:
        path = store_path(loaded)
        if not path.exists():
            raise GatewayFault("store_unavailable", f"There is no store at {path}.")
        return open_store(path, keys=keys_of(loaded.root.store))
    _, running = shared_store.gateways_on(url)
    if running:
        where = ", ".join(replica.address or replica.owner for replica in running)
        raise GatewayFault("store_unavailable", f"Gateways use this store ({where}). Stop them first.")
    return shared_store.open_shared(loaded, url, None)
