"""Open the configured store and build the app on it: for `serve`, for a client on stdio, and for `check`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from taskgate import clock
from taskgate.assembly import shared_store
from taskgate.assembly.app import App
from taskgate.assembly.build import build
from taskgate.assembly.channels import Outbound, build_channels
from taskgate.assembly.exposure import check_exposure
from taskgate.assembly.keys import Keys, keys_in
from taskgate.assembly.listener import listener_tls
from taskgate.assembly.shared_store import AS_CONFIGURED, Start
from taskgate.assembly.stores import claimed_store_path
from taskgate.assembly.tracing import build_tracing
from taskgate.config.load import LoadedConfig
from taskgate.core.errors import GatewayFault
from taskgate.core.settings.store import keys_of
from taskgate.held_folder import HeldFolder
from taskgate.ports.store import Store
from taskgate.store.sqlite.file_lock import StoreInUse
from taskgate.store.sqlite.store import open_store

MAX_STDIO_STORES = 64


def open_app(loaded: LoadedConfig, *, local: bool = False, start: Start = AS_CONFIGURED) -> App:
    """Build on the configured store: a file, which one process locks, or a database that gateways share."""
    keys, url, anchored, internal = keys_in(loaded.state_dir), shared_store.shared_url(loaded), None, None
    if url is None:
        store: Store = open_store(claimed_store_path(loaded), keys=keys_of(loaded.root.store))
    else:
        keys = Keys(*shared_store.agreed_keys(loaded, url, keys.operator_token, keys.secret))
        internal = shared_store.bound_for_others(loaded)
        store = shared_store.open_shared(loaded, url, internal, start)
        anchored = loaded.state_dir / f"audit-{store.ownership.owner}"
    tracing, state = build_tracing(loaded.root), HeldFolder(loaded.state_dir)
    return build(loaded, store, keys, tracing=tracing, local=local, store_file=anchored, internal=internal, state=state)


def open_stdio_app(loaded: LoadedConfig) -> App:
    """The same for a gateway that a client starts. Several may run at once, so each uses the first store that is free."""
    if loaded.root.store is not None:
        return open_app(loaded, local=True)
    for number in range(1, MAX_STDIO_STORES + 1):
        file = loaded.state_dir / f"stdio-{number}.db"
        try:
            store = open_store(file)
        except StoreInUse:
            continue
        keys, tracing, state = keys_in(loaded.state_dir), build_tracing(loaded.root), HeldFolder(loaded.state_dir)
        return build(loaded, store, keys, tracing=tracing, local=True, store_file=file, state=state)
    raise GatewayFault("store_unavailable", f"{MAX_STDIO_STORES} gateways of this kind are running already; stop some.")


def build_for_check(loaded: LoadedConfig) -> int:
    """Build everything that `serve` would, on a temporary store; return the number of servers.

    Raises ConfigError, TaskgateError or OSError, as the start would.
    """
    from tempfile import TemporaryDirectory

    shared_store.check_configured(loaded)
    check_exposure(loaded.root, loaded.root.listen.host)
    listener_tls(loaded.root)
    with TemporaryDirectory(prefix="taskgate-check-") as folder:
        store = open_store(Path(folder) / "check.db")

        async def construct() -> int:
            outbound = Outbound()
            try:
                tracing = build_tracing(loaded.root)
                app = build(loaded, store, tracing=tracing, store_file=Path(folder) / "check.db")
                build_channels(loaded.root, "http://127.0.0.1", outbound, passphrase_set=False, now_s=clock.wall)
                if tracing is not None:
                    await asyncio.to_thread(tracing.close)
                return len(app.servers)
            finally:
                await outbound.close()
                await store.close()

        return asyncio.run(construct())
