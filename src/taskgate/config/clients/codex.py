"""Codex: `[mcp_servers.NAME]` tables in `config.toml` of `~/.codex` (or `$CODEX_HOME`) and of a project's `.codex`."""

from __future__ import annotations

from pathlib import Path

from taskgate.config.clients.client import Client, Entry, Format, Host, Place, Variables, usual_entry
from taskgate.config.clients.server_entry import in_our_variables, read_usual


def _places(host: Host) -> list[Place]:
    home = Path(host.environment.get("CODEX_HOME") or host.home / ".codex")
    return [
        Place(home / "config.toml", ("mcp_servers",), Format.TOML, main=True),
        Place(host.folder / ".codex" / "config.toml", ("mcp_servers",), Format.TOML),
    ]


def _read(entry: Entry) -> Entry:
    """Codex has no variables in values; it names them in keys of their own."""
    server: Entry = in_our_variables(read_usual(entry), Variables.NONE)
    headers = dict(server.get("headers") or {})
    if isinstance(token := entry.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    for name, variable in (entry.get("env_http_headers") or {}).items():
        headers[str(name)] = f"${{{variable}}}"
    env = dict(server.get("env") or {})
    for variable in entry.get("env_vars") or ():
        if isinstance(variable, str):
            env.setdefault(variable, f"${{{variable}}}")
    return {**server, **({"headers": headers} if headers else {}), **({"env": env} if env else {})}


CODEX = Client("codex", "Codex", ("codex",), _places, _read, usual_entry)
