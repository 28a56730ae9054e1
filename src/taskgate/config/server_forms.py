"""Rewrite servers in the formats of other programs to the keys of `servers`.

Accepted: our own `servers`, a pasted `mcpServers` block (at the top or under `servers`), VS Code's `servers` with `type`,
the list `sources`, and the nested `stdio:`/`http:` of registry records. In a pasted block, keys that belong to the client
are ignored with a warning. Values are validated by `model.servers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from msgspec import field

from taskgate.config.problems import Problem, problem_at
from taskgate.config.spear_records import normalize_record
from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence, is_nothing, text_of
from taskgate.core.settings.section import keys_of
from taskgate.core.settings.servers import Server
from taskgate.core.settings.values import MAX_ID, server_id_fault

_TRANSPORTS = {"streamable-http": "http", "streamablehttp": "http", "streamable_http": "http", "local": "stdio"}
_RENAMED = {
    "prefix": "namespace",
    "httpUrl": "url",
    "serverUrl": "url",
    "environment": "env",
    "http_headers": "headers",
}
_TRUE = {"true", "yes", "on", "1"}


class ServerBlock(msgspec.Struct):
    """All servers of a file in normalized form, with problems and warnings."""

    servers: dict[str, Entry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    _folded: dict[str, Entry] = field(default_factory=dict)

    def add(self, entry: Entry, path: str) -> None:
        """Add one server, unless its id is already used; ids that differ only in case are the same."""
        same_name = self._folded.setdefault(entry.key.casefold(), entry)
        if same_name is not entry:
            message = f'the id "{entry.key}" is already used (by "{same_name.key}" at {same_name.key_mark})'
            self.problems.append(problem_at(entry.key_mark, path, message, "rename one of the two"))
            return
        self.servers[entry.key] = entry


def normalize_servers(root: Mapping) -> tuple[Mapping, ServerBlock]:
    """Return the root without its server blocks, and all servers in normalized form."""
    block = ServerBlock()
    own = root.get("servers")
    if isinstance(own, Mapping):
        for entry in own.without("mcpServers"):
            _add_own(block, entry)
        _add_pasted(block, own.map("mcpServers"), "servers.mcpServers")
    elif own is not None and not is_nothing(own):
        block.problems.append(
            problem_at(own.mark, "servers", "must be a map of server ids", "write servers: {my-server: {command: ...}}")
        )
    _add_pasted(block, root.map("mcpServers"), "mcpServers")
    _add_sources(block, root.get("sources"))
    if (inputs := root.entries.get("inputs")) is not None:
        block.warnings.append(
            problem_at(
                inputs.key_mark,
                "inputs",
                "editor inputs are ignored",
                "set environment variables instead",
            )
        )
    return root.without("servers", "mcpServers", "sources", "inputs"), block


def _add_own(block: ServerBlock, entry: Entry) -> None:
    path = f"servers.{entry.key}"
    fault = server_id_fault(entry.key)
    if fault:
        message, _, _ = fault.partition("; ")
        block.problems.append(problem_at(entry.key_mark, path, message, f"write {slug(entry.key)}"))
        return
    value = entry.value
    if isinstance(value, Mapping):
        value = _only_ours(value, path, block) if "type" in value.entries else value
        value = normalize_server(value)
    block.add(Entry(entry.key, entry.key_mark, value), path)


def _add_pasted(block: ServerBlock, pasted: Mapping, where: str) -> None:
    for entry in pasted:
        path = f"{where}.{entry.key}"
        name = entry.key
        if server_id_fault(name):
            name = slug(name)
            block.warnings.append(
                problem_at(entry.key_mark, path, f'renamed to "{name}", because the name is not a valid server id')
            )
        value = entry.value
        if isinstance(value, Mapping):
            value = normalize_server(_only_ours(value, path, block))
        block.add(Entry(name, entry.key_mark, value), path)


def _add_sources(block: ServerBlock, sources: Node | None) -> None:
    if sources is None or is_nothing(sources):
        return
    if not isinstance(sources, Sequence):
        block.problems.append(
            problem_at(sources.mark, "sources", "must be a list", "write sources: [{id: x, kind: mcp, url: ...}]")
        )
        return
    for position, item in enumerate(sources.items):
        path = f"sources[{position}]"
        name = item.text("id") if isinstance(item, Mapping) else None
        if not isinstance(item, Mapping) or not name:
            block.problems.append(problem_at(item.mark, path, "has no id", "write {id: x, kind: mcp, url: ...}"))
            continue
        kind = item.text("kind") or "mcp"
        if kind != "mcp":
            block.problems.append(
                problem_at(item.mark, f"{path}.kind", f'the kind "{kind}" is not supported', "write kind: mcp")
            )
            continue
        id_entry = item.entries["id"]
        _add_own(block, Entry(name, id_entry.value.mark, item.without("id", "kind")))


def normalize_server(server: Mapping) -> Mapping:
    """Return one server with the keys and shapes of other programs converted to ours."""
    for part in ("stdio", "http", "sse"):
        nested = server.get(part)
        if isinstance(nested, Mapping):
            server = server.without(part).with_entries(*nested)
    server = normalize_record(server)
    if "transport" not in server.entries and "type" in server.entries:
        server = _renamed(server, "type", "transport")
    for old, new in _RENAMED.items():
        if old in server.entries and new not in server.entries:
            server = _renamed(server, old, new)
    server = _with_word(server, "transport", lambda word: _TRANSPORTS.get(word.lower(), word))
    server = _with_word(
        server, "sampling", lambda w: "provider" if w in _TRUE else "relay" if w in ("false", "no", "off") else w
    )
    server = _with_enabled(server)
    server = _with_command(server)
    server = _with_tool_lists(server)
    policy = server.get("approval_policy")
    if isinstance(policy, Scalar) and policy.text is not None:
        whole = Mapping({"default": Entry("default", policy.mark, policy)}, policy.mark)
        server = server.with_value("approval_policy", whole)
    return server


def slug(name: str) -> str:
    """Return a valid server id that is similar to a name."""
    word = re.sub(r"[^A-Za-z0-9_-]+", "-", name)
    word = re.sub(r"_{2,}", "_", word).strip("_-")[:MAX_ID].strip("_-")
    return f"{word}-server" if server_id_fault(word or "_") and word else word or "server"


def _only_ours(server: Mapping, path: str, block: ServerBlock) -> Mapping:
    known = {
        *keys_of(Server),
        *_RENAMED,
        "type",
        "disabled",
        "includeTools",
        "excludeTools",
        "disabledTools",
        "stdio",
        "http",
        "sse",
    }
    foreign = [entry for entry in server if entry.key not in known]
    for entry in foreign:
        block.warnings.append(
            problem_at(
                entry.key_mark, f"{path}.{entry.key}", "ignored: this key belongs to the client, not to the server"
            )
        )
    return server.without(*(entry.key for entry in foreign))


def _renamed(server: Mapping, old: str, new: str) -> Mapping:
    entry = server.entries[old]
    return server.without(old).with_entries(Entry(new, entry.key_mark, entry.value))


def _with_word(server: Mapping, key: str, change: Callable[[str], str]) -> Mapping:
    value = server.get(key)
    if not isinstance(value, Scalar) or value.text is None:
        return server
    return server.with_value(key, Scalar(change(value.text), value.mark, value.secret))


def _with_enabled(server: Mapping) -> Mapping:
    disabled = server.entries.get("disabled")
    if disabled is None:
        return server
    off = (text_of(disabled.value) or "").lower() in _TRUE
    word = Scalar("false" if off else "true", disabled.value.mark)
    rest = server.without("disabled")
    return rest if "enabled" in rest.entries else rest.with_value("enabled", word, disabled.key_mark)


def _with_command(server: Mapping) -> Mapping:
    """Convert a command list to the program and its arguments."""
    command = server.get("command")
    if not isinstance(command, Sequence) or not command.items:
        return server
    first, *rest = command.items
    args = Sequence((*rest, *server.list("args")), command.mark)
    return server.with_value("command", first).with_value("args", args)


def _with_tool_lists(server: Mapping) -> Mapping:
    """Convert a client's lists of shown or hidden tools to `expose`; ignoring them would expose more tools."""
    for key, mode in (("includeTools", "allowlist"), ("excludeTools", "blocklist"), ("disabledTools", "blocklist")):
        entry = server.entries.get(key)
        if entry is None:
            continue
        server = server.without(key)
        if "expose" not in server.entries:
            word = Scalar(mode, entry.key_mark)
            expose = Mapping({}, entry.key_mark).with_value("mode", word).with_value("tools", entry.value)
            server = server.with_value("expose", expose, entry.key_mark)
    return server
