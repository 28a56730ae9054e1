"""The folder and environment of clients behind bridges, as far as servers depend on them.

A server without a `cwd` runs in its client's folder, a child process inherits the safe part of its client's environment, and
`${VAR}` in its entry is its client's variable: as if the client had started the server itself. Clients with the same folder and
environment share a process. Only a digest of the environment is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import msgspec.structs

from taskgate.config.load import LoadedConfig, load_again
from taskgate.config.problems import ConfigError
from taskgate.mcp.stdio.process import safe_env
from taskgate.telemetry.logs import log
from taskgate.upstreams.failures import unreachable
from taskgate.upstreams.spec import ServerSpec, Transport

MAX_PLACES: Final = 500
_NAMES: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)")
SpecsOf = Callable[[LoadedConfig], Mapping[str, ServerSpec]]


class Place(msgspec.Struct, frozen=True):
    folder: str
    variables: Mapping[str, str]
    specs: Mapping[str, ServerSpec]


class Places:
    """The places of all clients since the start, each under an id that is the same after a restart."""

    def __init__(self, loaded: LoadedConfig, specs_of: SpecsOf, secret: bytes) -> None:
        self._specs_of = specs_of
        self._secret = secret
        self._places: dict[str, Place] = {}
        self._loaded = loaded
        self._own = specs_of(loaded)
        self._own_placed = _placed(self._own, os.getcwd(), os.environ)
        self._names = variables_in(loaded)

    def adopt(self, loaded: LoadedConfig) -> None:
        """Apply a new configuration, with the variables of each client."""
        self._loaded = loaded
        self._own = self._specs_of(loaded)
        self._own_placed = _placed(self._own, os.getcwd(), os.environ)
        self._names = variables_in(loaded)
        for key, place in list(self._places.items()):
            specs = self._own if self._same_variables(place.variables) else self._reread(place.variables)
            self._places[key] = msgspec.structs.replace(place, specs=_placed(specs, place.folder, place.variables))

    async def enter(self, folder: str, environment: Mapping[str, str]) -> str:
        """Return the id of a client's place."""
        key = self._key(folder, environment)
        if key not in self._places:
            same = self._same_variables(environment)
            specs = self._own if same else await asyncio.to_thread(self._reread, environment)
            self._warn_of_differences(specs)
            if len(self._places) >= MAX_PLACES:
                del self._places[next(iter(self._places))]
            self._places[key] = Place(folder, dict(environment), _placed(specs, folder, environment))
        return key

    def spec(self, server: str, place: str) -> ServerSpec:
        """Return how a server is started for clients at a place: the gateway's own settings if nothing differs.

        Raises UpstreamError if it cannot be started.
        """
        known = self._places.get(place)
        if known is None:
            raise unreachable(
                server,
                "is not started: the folder and environment of its client are unknown until that client connects",
            )
        found = known.specs.get(server)
        if found is None:
            raise unreachable(server, "cannot be started for this client: a variable it needs is not set where it runs")
        return self._own[server] if found == self._own_placed.get(server) else found

    def gained(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables of this client whose absence made the gateway skip servers."""
        missing = {
            name
            for skipped in self._loaded.skipped
            if skipped.reason == "env_missing"
            for name in skipped.detail.split(", ")
        }
        return {name: environment[name] for name in missing if name in environment}

    def _key(self, folder: str, environment: Mapping[str, str]) -> str:
        relevant = {name: environment[name] for name in sorted(self._names) if name in environment}
        content = json.dumps([folder, relevant, sorted(safe_env(environment).items())])
        return hmac.new(self._secret, content.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:24]

    def _same_variables(self, environment: Mapping[str, str]) -> bool:
        return all(environment.get(name) == os.environ.get(name) for name in self._names)

    def _reread(self, environment: Mapping[str, str]) -> Mapping[str, ServerSpec]:
        if self._loaded.path is None:
            return self._own
        try:
            return self._specs_of(load_again(self._loaded, environment))
        except ConfigError as error:
            log.warning(
                "the configuration is invalid with a client's variables; its servers use those of the gateway",
                problems=str(error),
            )
            return self._own

    def _warn_of_differences(self, specs: Mapping[str, ServerSpec]) -> None:
        """Connections over HTTP are shared, so their headers use the gateway's own environment."""
        differing = [
            name
            for name, spec in specs.items()
            if spec.transport is not Transport.STDIO and not self._own.get(name, spec).equals(spec)
        ]
        if differing:
            log.warning(
                "a client's variables change the address or headers of servers; those of the gateway are used",
                servers=differing,
            )


def variables_in(loaded: LoadedConfig) -> frozenset[str]:
    """Return the names of all variables in the files of a configuration."""
    files = [file for path in loaded.watch for file in (sorted(path.glob("*")) if path.is_dir() else [path])]
    return frozenset(name for file in files for name in _NAMES.findall(_text(file)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _placed(specs: Mapping[str, ServerSpec], folder: str, environment: Mapping[str, str]) -> dict[str, ServerSpec]:
    inherits = safe_env(environment)
    return {name: _started_at(spec, folder, inherits) for name, spec in specs.items()}


def _started_at(spec: ServerSpec, folder: str, inherits: Mapping[str, str]) -> ServerSpec:
    if spec.transport is not Transport.STDIO:
        return spec
    return msgspec.structs.replace(spec, cwd=spec.cwd or folder or None, inherits=inherits)
