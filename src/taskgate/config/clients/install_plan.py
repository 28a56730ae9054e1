"""Compute which settings files change, and how, when the gateway replaces a client's servers. Reads files only."""

from __future__ import annotations

from pathlib import Path

import msgspec

from taskgate.config.clients.client import GATEWAY_NAME, Client, Gateway, Host, Reach, SettingsPlace, places_of
from taskgate.config.clients.found_servers import read_settings
from taskgate.config.clients.server_entry import is_gateway, why_client_only
from taskgate.config.clients.settings_text import SettingsError, servers_in, with_servers


class AlreadyInFront(Exception):
    """The gateway's entry is already in the client's settings."""


class FileChange(msgspec.Struct, frozen=True):
    """One settings file before and after the change; `existed` distinguishes an empty file from a missing one."""

    path: Path
    before: str
    after: str
    existed: bool
    places: tuple[SettingsPlace, ...]


def plan_takeover(client: Client, host: Host, gateway: Gateway, reach: Reach = Reach.ALL) -> list[FileChange]:
    """Return the changes that replace the client's servers by the gateway, except those that only the client can start.

    The gateway's entry is added to the user's own file, and to the shared file only with `Reach.SHARED`.
    """
    changes: dict[Path, FileChange] = {}
    for place in places_of(client, host, reach):
        known = changes.get(place.path)
        before = known.before if known else read_settings(place.path)
        text = known.after if known else before
        servers = _servers(text, place)
        if any(is_gateway(name, client.read(entry)) for name, entry in servers.items()):
            raise AlreadyInFront(
                f"{client.title} already has the gateway's entry in {place.path}. "
                "If `taskgate wrap` is running in another terminal, end it first."
            )
        kept = {name: entry for name, entry in servers.items() if why_client_only(entry) is not None}
        if place.main or (place.shared and reach is Reach.SHARED):
            text = with_servers(text, place, {GATEWAY_NAME: client.write(gateway), **kept})
        elif len(kept) < len(servers):
            text = with_servers(text, place, kept)
        else:
            continue
        places = (*(known.places if known else ()), place)
        changes[place.path] = FileChange(
            path=place.path, before=before, after=text, existed=place.path.exists(), places=places
        )
    return list(changes.values())


def _servers(text: str, place: SettingsPlace) -> dict[str, dict[str, object]]:
    try:
        return servers_in(text, place)
    except SettingsError as error:
        raise SettingsError(f"{place.path}: {error}") from None
