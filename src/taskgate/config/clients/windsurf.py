"""Windsurf: `mcp_config.json`, which calls an address `serverUrl`."""

from __future__ import annotations

from taskgate.config.clients.client import Client, Entry, Gateway, Host, Place, usual_entry
from taskgate.config.clients.server_entry import read_usual


def _places(host: Host) -> list[Place]:
    return [Place(host.home / ".codeium" / "windsurf" / "mcp_config.json", ("mcpServers",), main=True)]


def _write(gateway: Gateway) -> Entry:
    return {"serverUrl": gateway.url} if gateway.url else usual_entry(gateway)


WINDSURF = Client("windsurf", "Windsurf", ("windsurf",), _places, read_usual, _write)
