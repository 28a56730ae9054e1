"""VS Code: `mcp.json` of the user's profile and `.vscode/mcp.json` of a workspace, both with `servers`."""

from __future__ import annotations

from taskgate.config.clients.client import Client, Gateway, Host, Place, usual_entry
from taskgate.config.clients.server_entry import read_usual


def _places(host: Host) -> list[Place]:
    return [
        Place(host.settings() / "Code" / "User" / "mcp.json", ("servers",), main=True),
        Place(host.folder / ".vscode" / "mcp.json", ("servers",)),
    ]


def _write(gateway: Gateway) -> dict[str, object]:
    return usual_entry(gateway, stdio_type="stdio", http_type="http")


VSCODE = Client("vscode", "VS Code", ("code", "code-insiders"), _places, read_usual, _write)
