"""Resolve the paths of a configuration: relative ones start at the folder of the file, `~` is the home folder."""

from __future__ import annotations

from pathlib import Path

from taskgate.config.files import absolute
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.listen import Listen
from taskgate.config.model.providers import Provider
from taskgate.config.model.servers import Server

_SQLITE = "sqlite:///"


def resolve_paths(root: GatewayFile, base: Path) -> GatewayFile:
    """Return the configuration with all paths absolute."""
    cedar = root.cedar.model_copy(
        update={
            "policies": tuple(absolute(policy, base) for policy in root.cedar.policies),
            "entities": absolute(root.cedar.entities, base) if root.cedar.entities else None,
        }
    )
    store = root.store
    if store is not None and store.url.startswith(_SQLITE) and store.url != f"{_SQLITE}:memory:":
        file = absolute(store.url.removeprefix(_SQLITE), base)
        store = store.model_copy(update={"url": f"{_SQLITE}{file}"})
    return root.model_copy(
        update={
            "cedar": cedar,
            "listen": _listen(root.listen, base),
            "store": store,
            "registry_dir": absolute(root.registry_dir, base) if root.registry_dir else None,
            "servers": {name: _server(server, base) for name, server in root.servers.items()},
            "providers": {name: _provider(provider, base) for name, provider in root.providers.items()},
        }
    )


def _listen(listen: Listen, base: Path) -> Listen:
    if listen.tls is None:
        return listen
    files = {name: getattr(listen.tls, name) for name in ("cert", "key", "client_ca")}
    tls = listen.tls.model_copy(update={name: absolute(file, base) for name, file in files.items() if file is not None})
    return listen.model_copy(update={"tls": tls})


def _server(server: Server, base: Path) -> Server:
    return server.model_copy(update={"cwd": absolute(server.cwd, base)}) if server.cwd else server


def _provider(provider: Provider, base: Path) -> Provider:
    if provider.api_key_file is None:
        return provider
    return provider.model_copy(update={"api_key_file": absolute(provider.api_key_file, base)})
