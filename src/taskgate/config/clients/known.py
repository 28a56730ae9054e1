"""The supported clients: the settings files of each, and the format of its entries."""

from __future__ import annotations

from pathlib import Path

from taskgate.config.clients.client import (
    CannotInstall,
    Client,
    Entry,
    Format,
    Gateway,
    Host,
    Pointer,
    SettingsPlace,
    Variables,
)
from taskgate.config.clients.server_entry import common_entry, convert_variables, read_common
from taskgate.config.json_text import JsonTextError, scan
from taskgate.config.problems import did_you_mean


def _claude_code_places(host: Host) -> list[SettingsPlace]:
    folder = host.environment.get("CLAUDE_CONFIG_DIR")
    state = (host.home if not folder else host.folder / folder) / ".claude.json"
    return [
        SettingsPlace(state, ("mcpServers",), main=True),
        SettingsPlace(state, ("projects", str(host.folder), "mcpServers")),
        SettingsPlace(host.folder / ".mcp.json", ("mcpServers",), shared=True),
    ]


def _claude_code_write(gateway: Gateway) -> dict[str, object]:
    return common_entry(gateway, stdio_type="stdio", http_type="http")


CLAUDE_CODE = Client(
    name="claude-code",
    title="Claude Code",
    programs=("claude",),
    places=_claude_code_places,
    read=read_common,
    write=_claude_code_write,
)


def _claude_desktop_places(host: Host) -> list[SettingsPlace]:
    return [SettingsPlace(host.settings() / "Claude" / "claude_desktop_config.json", ("mcpServers",), main=True)]


def _claude_desktop_write(gateway: Gateway) -> dict[str, object]:
    if gateway.url:
        raise CannotInstall("Claude Desktop's settings file only supports programs; install without --url")
    return common_entry(gateway)


CLAUDE_DESKTOP = Client(
    name="claude-desktop",
    title="Claude Desktop",
    programs=("claude-desktop",),
    places=_claude_desktop_places,
    read=read_common,
    write=_claude_desktop_write,
    variables=Variables.NONE,
)


def _cursor_places(host: Host) -> list[SettingsPlace]:
    return [
        SettingsPlace(host.home / ".cursor" / "mcp.json", ("mcpServers",), main=True),
        SettingsPlace(host.folder / ".cursor" / "mcp.json", ("mcpServers",), shared=True),
    ]


CURSOR = Client(
    name="cursor",
    title="Cursor",
    programs=("cursor", "cursor-agent"),
    places=_cursor_places,
    read=read_common,
    write=common_entry,
)


def _vscode_places(host: Host) -> list[SettingsPlace]:
    return [
        SettingsPlace(host.settings() / "Code" / "User" / "mcp.json", ("servers",), main=True),
        SettingsPlace(host.folder / ".vscode" / "mcp.json", ("servers",), shared=True),
    ]


def _vscode_write(gateway: Gateway) -> dict[str, object]:
    return common_entry(gateway, stdio_type="stdio", http_type="http")


VSCODE = Client(
    name="vscode",
    title="VS Code",
    programs=("code", "code-insiders"),
    places=_vscode_places,
    read=read_common,
    write=_vscode_write,
)


def _codex_places(host: Host) -> list[SettingsPlace]:
    home = Path(host.environment.get("CODEX_HOME") or host.home / ".codex")
    return [
        SettingsPlace(home / "config.toml", ("mcp_servers",), Format.TOML, main=True),
        SettingsPlace(host.folder / ".codex" / "config.toml", ("mcp_servers",), Format.TOML, shared=True),
    ]


def _codex_read(entry: Entry) -> Entry:
    """Convert a Codex entry. Codex has no variables in values; separate keys name them."""
    server: Entry = convert_variables(read_common(entry), Variables.NONE)
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


CODEX = Client(
    name="codex", title="Codex", programs=("codex",), places=_codex_places, read=_codex_read, write=common_entry
)


def _zed_places(host: Host) -> list[SettingsPlace]:
    folder = host.settings() / "Zed" if host.platform == "win32" else host.home / ".config" / "zed"
    if host.platform not in ("win32", "darwin"):
        folder = host.settings() / "zed"
    return [
        SettingsPlace(folder / "settings.json", ("context_servers",), main=True),
        SettingsPlace(host.folder / ".zed" / "settings.json", ("context_servers",), shared=True),
    ]


def _zed_read(entry: Entry) -> Entry:
    command = entry.get("command")
    if isinstance(command, dict):
        entry = {**entry, **command, "command": command.get("path")}
    return read_common(entry)


def _zed_write(gateway: Gateway) -> Entry:
    return common_entry(gateway) if gateway.url else {"source": "custom", **common_entry(gateway), "env": {}}


ZED = Client(
    name="zed",
    title="Zed",
    programs=("zed", "zeditor"),
    places=_zed_places,
    read=_zed_read,
    write=_zed_write,
    variables=Variables.NONE,
)


def _windsurf_places(host: Host) -> list[SettingsPlace]:
    return [SettingsPlace(host.home / ".codeium" / "windsurf" / "mcp_config.json", ("mcpServers",), main=True)]


def _windsurf_write(gateway: Gateway) -> Entry:
    return {"serverUrl": gateway.url} if gateway.url else common_entry(gateway)


WINDSURF = Client(
    name="windsurf",
    title="Windsurf",
    programs=("windsurf",),
    places=_windsurf_places,
    read=read_common,
    write=_windsurf_write,
)


def _opencode_places(host: Host) -> list[SettingsPlace]:
    home = Path(host.environment.get("XDG_CONFIG_HOME") or host.home / ".config") / "opencode"
    user, project = _opencode_file(home), _opencode_file(host.folder)
    return [
        SettingsPlace(user, _opencode_pointer(user), main=True),
        SettingsPlace(project, _opencode_pointer(project), shared=True),
    ]


def _opencode_file(folder: Path) -> Path:
    with_comments = folder / "opencode.jsonc"
    return with_comments if with_comments.exists() else folder / "opencode.json"


def _opencode_pointer(path: Path) -> Pointer:
    try:
        root = scan(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, JsonTextError):
        return ("mcp",)
    mcp = root.member("mcp")
    servers = mcp.value.member("servers") if mcp else None
    newer = servers is not None and servers.value.members is not None and servers.value.member("type") is None
    return ("mcp", "servers") if newer else ("mcp",)


def _opencode_write(gateway: Gateway) -> Entry:
    if gateway.url:
        return {"type": "remote", "url": gateway.url}
    return {"type": "local", "command": list(gateway.command)}


OPENCODE = Client(
    name="opencode",
    title="opencode",
    programs=("opencode",),
    places=_opencode_places,
    read=read_common,
    write=_opencode_write,
    variables=Variables.BRACES,
)


_FILE = "cline_mcp_settings.json"


def _cline_places(host: Host) -> list[SettingsPlace]:
    storage = host.settings() / "Code" / "User" / "globalStorage" / "saoudrizwan.claude-dev" / "settings" / _FILE
    named = host.environment.get("CLINE_MCP_SETTINGS_PATH")
    program = Path(named) if named else host.home / ".cline" / "data" / "settings" / _FILE
    main = program if named or program.exists() or not storage.exists() else storage
    return [SettingsPlace(path, ("mcpServers",), main=path == main) for path in (program, storage)]


def _cline_read(entry: Entry) -> Entry:
    """Convert a Cline entry, in which a URL without a type means HTTP+SSE."""
    server = read_common(entry)
    if "url" in server and not entry.get("type"):
        server["transport"] = "sse"
    return server


def _cline_write(gateway: Gateway) -> Entry:
    return common_entry(gateway, http_type="streamableHttp")


CLINE = Client(
    name="cline", title="Cline", programs=("cline",), places=_cline_places, read=_cline_read, write=_cline_write
)


CLIENTS = {
    client.name: client
    for client in (CLAUDE_CODE, CLAUDE_DESKTOP, CURSOR, VSCODE, CODEX, ZED, WINDSURF, OPENCODE, CLINE)
}


class UnknownClient(Exception):
    """The client is not supported; the message lists the supported ones."""


def client_named(name: str) -> Client:
    """Return the client with a name. Raises UnknownClient."""
    if name in CLIENTS:
        return CLIENTS[name]
    hint = did_you_mean(name, CLIENTS) or f"supported clients: {', '.join(CLIENTS)}"
    raise UnknownClient(f'"{name}" is not a supported client; {hint}')


def client_of_program(program: str) -> Client:
    """Return the client that a program belongs to. Raises UnknownClient."""
    stem = Path(program).name.removesuffix(".exe")
    for client in CLIENTS.values():
        if stem in client.programs:
            return client
    raise UnknownClient(f'"{stem}" is not a known program; name its client with --client ({", ".join(CLIENTS)})')
