"""Convert one server entry of a client's settings to the keys of our `servers`.

Only what concerns the server is converted: how to reach it, whether it is enabled, which tools are hidden. Settings of the
client itself (auto-approval, icons, timeouts) are dropped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from taskgate.config.clients.client import GATEWAY_NAME, Entry, Gateway, Variables


def common_entry(gateway: Gateway, *, stdio_type: str | None = None, http_type: str | None = None) -> Entry:
    """Return the gateway's entry in the format of most clients."""
    if gateway.url:
        return {**({"type": http_type} if http_type else {}), "url": gateway.url}
    program, *args = gateway.command
    return {**({"type": stdio_type} if stdio_type else {}), "command": program, "args": args}


def is_gateway(name: str, server: Entry) -> bool:
    """Whether an entry is the gateway itself, which must not become its own upstream server."""
    words = [server.get("command") or "", *(server.get("args") or ())]
    programs = {Path(str(word)).name.removesuffix(".exe") for word in words}
    starts_us = "stdio" in words and "taskgate" in programs
    return starts_us or (name == GATEWAY_NAME and "url" in server)


_HTTP_TYPES = {"http", "streamable-http", "streamablehttp", "streamable_http", "remote"}


def read_common(entry: Entry) -> Entry:
    """Convert an entry in the format of most clients: command, args, env, or a URL with headers."""
    server: Entry = {}
    command = entry.get("command")
    if isinstance(command, list) and command:
        server["command"], rest = str(command[0]), [str(word) for word in command[1:]]
    else:
        rest = []
        if isinstance(command, str) and command:
            server["command"] = command
    args = [*rest, *(str(word) for word in entry.get("args") or ())]
    if args:
        server["args"] = args
    for ours, theirs in (("env", ("env", "environment")), ("headers", ("headers", "http_headers"))):
        values: dict[Any, Any] = next((entry[key] for key in theirs if isinstance(entry.get(key), dict)), {})
        if values:
            server[ours] = {str(key): _text(value) for key, value in values.items() if value is not None}
    url = next((entry[key] for key in ("url", "serverUrl", "httpUrl") if isinstance(entry.get(key), str)), None)
    if url and "command" not in server:
        server["url"] = url
    if isinstance(entry.get("cwd"), str):
        server["cwd"] = entry["cwd"]
    return {**server, **_transport(entry, server), **_switch(entry), **_tool_lists(entry)}


def why_client_only(entry: Entry) -> str | None:
    """Return why only the client can start this server, or None if the gateway can."""
    if entry.get("source") == "extension":
        return "is started by a client extension"
    if "envFile" in entry:
        return "reads environment variables from a file (envFile)"
    if _needs_input(entry):
        return "prompts for values (${input:...})"
    if any(isinstance(entry.get(key), dict) and entry[key] for key in ("oauth", "auth")):
        return "uses an OAuth login of the client"
    if not any(entry.get(key) for key in ("command", "url", "serverUrl", "httpUrl")):
        return "has neither a command nor a URL"
    return None


def may_require_login(server: Entry) -> bool:
    """Whether the server may require an OAuth login, which its client would do on demand."""
    given = {name.lower() for name in server.get("headers") or {}}
    return str(server.get("url", "")).startswith("https://") and "authorization" not in given


def _needs_input(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_needs_input(item) for item in value.values())
    if isinstance(value, list):
        return any(_needs_input(item) for item in value)
    return isinstance(value, str) and "${input:" in value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _transport(entry: Entry, server: Entry) -> Entry:
    word = str(entry.get("type") or entry.get("transport") or "").lower()
    if "url" in server and word == "sse":
        return {"transport": "sse"}
    if "url" in server and word in _HTTP_TYPES - {"remote"}:
        return {"transport": "http"}
    return {}


def _switch(entry: Entry) -> Entry:
    off = entry.get("disabled") is True or entry.get("enabled") is False
    return {"enabled": False} if off else {}


def _tool_lists(entry: Entry) -> Entry:
    shown = next((entry[key] for key in ("includeTools", "enabled_tools") if isinstance(entry.get(key), list)), None)
    hidden = next(
        (entry[k] for k in ("excludeTools", "disabledTools", "disabled_tools") if isinstance(entry.get(k), list)), None
    )
    if shown:
        return {"expose": {"mode": "allowlist", "tools": [str(tool) for tool in shown if tool not in (hidden or ())]}}
    if hidden:
        return {"expose": {"mode": "blocklist", "tools": [str(tool) for tool in hidden]}}
    return {}


def convert_variables(value: Any, variables: Variables) -> Any:
    """Convert the variables in a value to our syntax; escape literal `${` if the client has no variables."""
    if isinstance(value, dict):
        return {key: convert_variables(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [convert_variables(item, variables) for item in value]
    if not isinstance(value, str) or variables is Variables.OURS:
        return value
    protected = value.replace("${", "$${")
    if variables is Variables.BRACES:
        return re.sub(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}", r"${\1}", protected)
    return protected


def with_absolute_cwd(server: Entry, base: Path) -> Entry:
    """Make a relative `cwd` absolute: it is relative to the client's folder, not to our file."""
    cwd = server.get("cwd")
    if not isinstance(cwd, str) or cwd.startswith(("/", "~", "$")):
        return server
    return {**server, "cwd": str(base / cwd)}
