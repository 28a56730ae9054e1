"""Cursor: `mcp.json` in `~/.cursor` and in a project's `.cursor`."""

from __future__ import annotations

from taskgate.config.clients.client import Client, Host, Place, usual_entry
from taskgate.config.clients.server_entry import read_usual


def _places(host: Host) -> list[Place]:
    return [
        Place(host.home / ".cursor" / "mcp.json", ("mcpServers",), main=True),
        Place(host.folder / ".cursor" / "mcp.json", ("mcpServers",)),
    ]


CURSOR = Client("cursor", "Cursor", ("cursor", "cursor-agent"), _places, read_usual, usual_entry)
