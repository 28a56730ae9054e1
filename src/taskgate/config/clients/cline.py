"""Cline: `cline_mcp_settings.json` of the editor extension, and of the command line under `~/.cline`."""

from __future__ import annotations

from pathlib import Path

from taskgate.config.clients.client import Client, Entry, Gateway, Host, Place, usual_entry
from taskgate.config.clients.server_entry import read_usual

_FILE = "cline_mcp_settings.json"


def _places(host: Host) -> list[Place]:
    storage = host.settings() / "Code" / "User" / "globalStorage" / "saoudrizwan.claude-dev" / "settings" / _FILE
    named = host.environment.get("CLINE_MCP_SETTINGS_PATH")
    program = Path(named) if named else host.home / ".cline" / "data" / "settings" / _FILE
    main = program if named or program.exists() or not storage.exists() else storage
    return [Place(path, ("mcpServers",), main=path == main) for path in (program, storage)]


def _read(entry: Entry) -> Entry:
    """An address without a type is the old transport there."""
    server = read_usual(entry)
    if "url" in server and not entry.get("type"):
        server["transport"] = "sse"
    return server


def _write(gateway: Gateway) -> Entry:
    return usual_entry(gateway, http_type="streamableHttp")


CLINE = Client("cline", "Cline", ("cline",), _places, _read, _write)
