"""Claude Code: `~/.claude.json` for the user and for each project, `.mcp.json` in a project."""

from __future__ import annotations

from taskgate.config.clients.client import Client, Gateway, Host, Place, usual_entry
from taskgate.config.clients.server_entry import read_usual


def _places(host: Host) -> list[Place]:
    folder = host.environment.get("CLAUDE_CONFIG_DIR")
    state = (host.home if not folder else host.folder / folder) / ".claude.json"
    return [
        Place(state, ("mcpServers",), main=True),
        Place(state, ("projects", str(host.folder), "mcpServers")),
        Place(host.folder / ".mcp.json", ("mcpServers",)),
    ]


def _write(gateway: Gateway) -> dict[str, object]:
    return usual_entry(gateway, stdio_type="stdio", http_type="http")


CLAUDE_CODE = Client("claude-code", "Claude Code", ("claude",), _places, read_usual, _write)
