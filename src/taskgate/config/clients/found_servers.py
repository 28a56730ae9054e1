"""Find the servers in the settings of the clients on this machine. Reads files only.

The gateway's own entry is skipped, so that importing twice cannot create a loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

from taskgate.config.clients.client import Client, Entry, Host, Reach, SettingsPlace, places_of
from taskgate.config.clients.server_entry import (
    convert_variables,
    is_gateway,
    may_require_login,
    why_client_only,
    with_absolute_cwd,
)
from taskgate.config.clients.settings_text import SettingsError, servers_in
from taskgate.config.files import read_bytes
from taskgate.config.leaving import Leaving, server_leaving
from taskgate.config.problems import ConfigError, Mark
from taskgate.config.server_forms import normalize_server
from taskgate.config.tree import Mapping, from_plain

MAX_SETTINGS_BYTES = 32 << 20


class Found(msgspec.Struct, frozen=True):
    """One server of one client."""

    name: str
    server: Entry
    client: str
    path: Path

    def leaving(self, folder: Path) -> list[Leaving]:
        """Return what leaves the settings with this server. `folder` is that of the client."""
        whole = from_plain(as_texts(with_absolute_cwd(self.server, folder)), Mark(str(self.path)))
        assert isinstance(whole, Mapping)
        return server_leaving(self.name, normalize_server(whole))


class Gathered(msgspec.Struct):
    """The servers that were found, the files that were read, and notes about servers that cannot be moved."""

    found: list[Found] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(clients: Iterable[Client], host: Host, reach: Reach = Reach.ALL) -> Gathered:
    """Return the servers of these clients."""
    result = Gathered()
    for client in clients:
        for place in places_of(client, host, reach):
            if place.path.exists():
                _gather_place(client, place, host, reach, result)
    return result


def shared_files(clients: Iterable[Client], host: Host) -> set[Path]:
    """Return the existing settings files of a project."""
    return {place.path for client in clients for place in places_of(client, host, Reach.SHARED) if place.path.exists()}


def as_texts(value: Any) -> Any:
    """Convert every scalar to text, as in a parsed configuration."""
    if isinstance(value, dict):
        return {str(key): as_texts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_texts(item) for item in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def read_settings(path: Path) -> str:
    """Return the exact text of a settings file, including byte order mark and line endings; empty if there is no file."""
    if not path.exists():
        return ""
    try:
        return read_bytes(path, MAX_SETTINGS_BYTES).decode("utf-8")
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    except UnicodeDecodeError:
        raise SettingsError("not UTF-8 text") from None


def _gather_place(client: Client, place: SettingsPlace, host: Host, reach: Reach, result: Gathered) -> None:
    if place.path not in result.files:
        result.files.append(place.path)
    try:
        entries = servers_in(read_settings(place.path), place)
    except SettingsError as error:
        result.notes.append(f"{place.path}: {error}")
        return
    for name, entry in entries.items():
        server = client.read(convert_variables(entry, client.variables))
        if is_gateway(name, server):
            continue
        why = why_client_only(entry)
        if why is None and "command" not in server and "url" not in server:
            why = "has neither a command nor a URL"
        if why is not None:
            result.notes.append(f'{place.path}: "{name}" {why}; it stays with the client and bypasses the gateway')
            continue
        if may_require_login(server):
            server = {**server, "auth": {"type": "authorization_code"}}
            result.notes.append(
                f'{place.path}: "{name}" is used without a login, as in its client; if it requires one, run: '
                f"taskgate servers login {name}"
            )
        if reach is not Reach.SHARED:
            # A shared file moves its servers to a file in the same folder, where relative paths stay valid.
            server = with_absolute_cwd(server, host.folder)
        result.found.append(Found(name, server, client.name, place.path))
