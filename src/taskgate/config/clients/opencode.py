"""opencode: `mcp` in `opencode.json` or `opencode.jsonc`; version 2 keeps the servers one step deeper, in
`mcp.servers`.
"""

from __future__ import annotations

from pathlib import Path

from taskgate.config.clients.client import Client, Entry, Gateway, Host, Place, Pointer, Variables
from taskgate.config.clients.server_entry import read_usual
from taskgate.config.json_text import JsonTextError, scan


def _places(host: Host) -> list[Place]:
    home = Path(host.environment.get("XDG_CONFIG_HOME") or host.home / ".config") / "opencode"
    user, project = _file(home), _file(host.folder)
    return [Place(user, _pointer(user), main=True), Place(project, _pointer(project))]


def _file(folder: Path) -> Path:
    with_comments = folder / "opencode.jsonc"
    return with_comments if with_comments.exists() else folder / "opencode.json"


def _pointer(path: Path) -> Pointer:
    try:
        root = scan(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, JsonTextError):
        return ("mcp",)
    mcp = root.member("mcp")
    servers = mcp.value.member("servers") if mcp else None
    newer = servers is not None and servers.value.members is not None and servers.value.member("type") is None
    return ("mcp", "servers") if newer else ("mcp",)


def _write(gateway: Gateway) -> Entry:
    if gateway.url:
        return {"type": "remote", "url": gateway.url}
    return {"type": "local", "command": list(gateway.command)}


OPENCODE = Client("opencode", "opencode", ("opencode",), _places, read_usual, _write, Variables.BRACES)
