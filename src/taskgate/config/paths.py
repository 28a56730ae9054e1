"""Resolve the paths of a configuration: relative ones start at the folder of the file, `~` is the home folder."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.listen import Listen
from taskgate.core.settings.providers import Provider
from taskgate.core.settings.servers import Server

_SQLITE = "sqlite:///"


def resolve_paths(root: GatewayFile, absolute: Callable[[str], str]) -> GatewayFile:
    """Return the configuration with all paths as `absolute` returns them."""
    cedar, store = root.cedar, root.store
    policies = tuple(absolute(policy) for policy in cedar.policies)
    if store is not None and store.url.startswith(_SQLITE) and store.url != f"{_SQLITE}:memory:":
        store = replace(store, url=f"{_SQLITE}{absolute(store.url.removeprefix(_SQLITE))}")
    return replace(
        root,
        audit=replace(root.audit, export=absolute(root.audit.export) if root.audit.export else None),
        cedar=replace(cedar, policies=policies, entities=absolute(cedar.entities) if cedar.entities else None),
        listen=_listen(root.listen, absolute),
        store=store,
        registry_dir=absolute(root.registry_dir) if root.registry_dir else None,
        servers={name: _server(server, absolute) for name, server in root.servers.items()},
        providers={name: _provider(provider, absolute) for name, provider in root.providers.items()},
    )


def _listen(listen: Listen, absolute: Callable[[str], str]) -> Listen:
    tls = listen.tls
    if tls is None:
        return listen
    client_ca = None if tls.client_ca is None else absolute(tls.client_ca)
    return replace(listen, tls=replace(tls, cert=absolute(tls.cert), key=absolute(tls.key), client_ca=client_ca))


def _server(server: Server, absolute: Callable[[str], str]) -> Server:
    return replace(server, cwd=absolute(server.cwd)) if server.cwd else server


def _provider(provider: Provider, absolute: Callable[[str], str]) -> Provider:
    if provider.api_key_file is None:
        return provider
    return replace(provider, api_key_file=absolute(provider.api_key_file))
