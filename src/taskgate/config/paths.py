"""Resolve the paths of a configuration: relative ones start at the folder of the file, `~` is the home folder."""

from __future__ import annotations

from collections.abc import Callable

from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.listen import Listen
from taskgate.config.model.providers import Provider
from taskgate.config.model.servers import Server

_SQLITE = "sqlite:///"


def resolve_paths(root: GatewayFile, absolute: Callable[[str], str]) -> GatewayFile:
    """Return the configuration with all paths as `absolute` returns them."""
    cedar = root.cedar.model_copy(
        update={
            "policies": tuple(absolute(policy) for policy in root.cedar.policies),
            "entities": absolute(root.cedar.entities) if root.cedar.entities else None,
        }
    )
    store = root.store
    if store is not None and store.url.startswith(_SQLITE) and store.url != f"{_SQLITE}:memory:":
        file = absolute(store.url.removeprefix(_SQLITE))
        store = store.model_copy(update={"url": f"{_SQLITE}{file}"})
    audit = root.audit.model_copy(update={"export": absolute(root.audit.export) if root.audit.export else None})
    return root.model_copy(
        update={
            "audit": audit,
            "cedar": cedar,
            "listen": _listen(root.listen, absolute),
            "store": store,
            "registry_dir": absolute(root.registry_dir) if root.registry_dir else None,
            "servers": {name: _server(server, absolute) for name, server in root.servers.items()},
            "providers": {name: _provider(provider, absolute) for name, provider in root.providers.items()},
        }
    )


def _listen(listen: Listen, absolute: Callable[[str], str]) -> Listen:
    if listen.tls is None:
        return listen
    files = {name: getattr(listen.tls, name) for name in ("cert", "key", "client_ca")}
    tls = listen.tls.model_copy(update={name: absolute(file) for name, file in files.items() if file is not None})
    return listen.model_copy(update={"tls": tls})


def _server(server: Server, absolute: Callable[[str], str]) -> Server:
    return server.model_copy(update={"cwd": absolute(server.cwd)}) if server.cwd else server


def _provider(provider: Provider, absolute: Callable[[str], str]) -> Provider:
    if provider.api_key_file is None:
        return provider
    return provider.model_copy(update={"api_key_file": absolute(provider.api_key_file)})
