"""Every server that the clients on this machine already use, in our own form.

Reads settings files and nothing else. The gateway's own entry is passed over, so that importing twice cannot make a
loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from taskgate.config.clients.client import Client, Entry, Host, Place, is_gateway
from taskgate.config.clients.server_entry import in_our_variables, why_it_stays, with_absolute_cwd
from taskgate.config.clients.settings_text import SettingsError, servers_in
from taskgate.config.files import read_bytes
from taskgate.config.problems import ConfigError

MAX_SETTINGS_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """One server of one client."""

    name: str
    server: Entry
    client: str
    path: Path


@dataclass(slots=True)
class Gathered:
    """What was found, what was looked at, and what could not be used."""

    found: list[Found] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(clients: Iterable[Client], host: Host) -> Gathered:
    """The servers of these clients."""
    result = Gathered()
    for client in clients:
        for place in client.places(host):
            if place.path.exists():
                _gather_place(client, place, host, result)
    return result


def read_settings(path: Path) -> str:
    """A settings file's text, exactly as it is, byte order mark and line ends included; an absent file is empty."""
    if not path.exists():
        return ""
    try:
        return read_bytes(path, MAX_SETTINGS_BYTES).decode("utf-8")
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    except UnicodeDecodeError:
        raise SettingsError("not UTF-8 text") from None


def _gather_place(client: Client, place: Place, host: Host, result: Gathered) -> None:
    if place.path not in result.files:
        result.files.append(place.path)
    try:
        entries = servers_in(read_settings(place.path), place)
    except SettingsError as error:
        result.notes.append(f"{place.path}: {error}")
        return
    for name, entry in entries.items():
        server = client.read(in_our_variables(entry, client.variables))
        if is_gateway(name, server):
            continue
        why = why_it_stays(entry)
        if why is None and "command" not in server and "url" not in server:
            why = "has neither a command nor an address"
        if why is not None:
            result.notes.append(f'{place.path}: "{name}" {why}; it stays with the client and does not pass the gateway')
            continue
        result.found.append(Found(name, with_absolute_cwd(server, host.folder), client.name, place.path))
