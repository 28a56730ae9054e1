"""Every server that the clients on this machine already use, in our own form.

Reads settings files and nothing else. The gateway's own entry is passed over, so that importing twice cannot make a
loop.

What `taskgate.yaml` becomes when a client's servers are taken into it: the new text, and what was done with each
server.

Pure. Comments and order of the file stay; new servers come first under `servers:`. The result is read back before it
is offered, so a plan that would not load is never shown.

Which files change, and how, when the gateway is put in front of a client's servers. Pure apart from reading the
files.

Everything that must change so that an agent, started now, meets the gateway instead of its own servers.

The agent's servers go into a temporary configuration: a copy of the user's own file with them added, beside it so
that relative paths stay right, or a file of its own when there is none.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from taskgate.config.clients.client import (
    GATEWAY_NAME,
    Client,
    Entry,
    Gateway,
    Host,
    Reach,
    SettingsPlace,
    gateway_command,
    in_our_variables,
    is_gateway,
    may_want_login,
    places_of,
    why_it_stays,
    with_absolute_cwd,
)
from taskgate.config.clients.settings_text import SettingsError, servers_in, with_servers
from taskgate.config.document import read_document
from taskgate.config.problems import ConfigError, plain
from taskgate.config.server_forms import gather_servers, slug
from taskgate.config.value_sources import read_bytes

MAX_SETTINGS_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """One server of one client."""

    name: str
    server: Entry
    client: str
    path: Path


@dataclass(slots=True)
class Gathered:
    """What was found, what was looked at, and what could not be used."""

    found: list[Found] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(clients: Iterable[Client], host: Host, reach: Reach = Reach.ALL) -> Gathered:
    """The servers of these clients."""
    result = Gathered()
    for client in clients:
        for place in places_of(client, host, reach):
            if place.path.exists():
                _gather_place(client, place, host, reach, result)
    return result


def read_settings(path: Path) -> str:
    """A settings file's text, exactly as it is, byte order mark and line ends included; an absent file is empty."""
    if not path.exists():
        return ""
    try:
        return read_bytes(path, MAX_SETTINGS_BYTES).decode("utf-8")
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    except UnicodeDecodeError:
        raise SettingsError("not UTF-8 text") from None


def _gather_place(client: Client, place: SettingsPlace, host: Host, reach: Reach, result: Gathered) -> None:
    if place.path not in result.files:
        result.files.append(place.path)
    try:
        entries = servers_in(read_settings(place.path), place)
    except SettingsError as error:
        result.notes.append(f"{place.path}: {error}")
        return
    for name, entry in entries.items():
        server = client.read(in_our_variables(entry, client.variables))
        if is_gateway(name, server):
            continue
        why = why_it_stays(entry)
        if why is None and "command" not in server and "url" not in server:
            why = "has neither a command nor an address"
        if why is not None:
            result.notes.append(f'{place.path}: "{name}" {why}; it stays with the client and does not pass the gateway')
            continue
        if may_want_login(server):
            server = {**server, "auth": {"type": "authorization_code"}}
            result.notes.append(
                f'{place.path}: "{name}" is used without a login, as its client did; if it wants one, run: '
                f"taskgate servers login {name}"
            )
        if reach is not Reach.SHARED:
            # What goes from a shared file to another file of the same folder means the same there, for everybody.
            server = with_absolute_cwd(server, host.folder)
        result.found.append(Found(name, server, client.name, place.path))


_HEADER = "schema: 1\n"
_SECRET_KEYS = ("env", "headers")


class CannotImport(Exception):
    """The file cannot be changed safely; the message says what to do by hand."""


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """A change that has not been made. `shown` is the new text with the values of variables and headers hidden."""

    before: str
    after: str
    shown: str
    added: dict[str, Found]
    passed_over: tuple[tuple[Found, str], ...] = ()

    def diff(self, name: str) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.shown.splitlines(keepends=True), name, f"{name} (new)", n=1
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def plan_import(found: list[Found], before: str, name: str = "taskgate.yaml") -> ImportPlan:
    """The change that takes these servers into the file."""
    known = _servers_of(before, name)
    added: dict[str, Found] = {}
    passed_over: list[tuple[Found, str]] = []
    for item in found:
        new_name, reason = _name_for(item, known)
        if reason:
            passed_over.append((item, reason))
            continue
        added[new_name] = item
        known[new_name] = as_texts(item.server)
    if not added:
        return ImportPlan(before, before, before, {}, tuple(passed_over))
    after = _inserted(before, added, hide=False)
    if _servers_of(after, name) != known:
        raise CannotImport(f"{name} is written in a way that cannot be changed safely; add the servers by hand")
    return ImportPlan(before, after, _inserted(before, added, hide=True), added, tuple(passed_over))


def as_texts(value: Any) -> Any:
    """A value as our files hold it: every scalar is text."""
    if isinstance(value, dict):
        return {str(key): as_texts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_texts(item) for item in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _servers_of(text: str, name: str) -> dict[str, Any]:
    try:
        _, block = gather_servers(read_document(text, name))
    except ConfigError as error:
        raise CannotImport(f"{name} has mistakes; correct them first:\n{error}") from None
    return {key: plain(entry.value) for key, entry in block.servers.items()}


def _name_for(item: Found, known: dict[str, Any]) -> tuple[str, str]:
    """The id a server gets, or the reason why it is passed over."""
    folded = {name.casefold(): name for name in known}
    wanted = as_texts(item.server)
    for name in (
        slug(item.name),
        slug(f"{item.name}-{item.client}"),
        *(slug(f"{item.name}-{n}") for n in range(2, 100)),
    ):
        twin = folded.get(name.casefold())
        if twin is None:
            return name, ""
        if known[twin] == wanted:
            return "", f'it is there already, as "{twin}"'
    return "", "there are too many of that name"


def _inserted(before: str, added: dict[str, Found], *, hide: bool) -> str:
    if not before.strip():
        return f"{_HEADER}servers:\n{_rendered(added, '  ', hide=hide)}"
    text = before if before.endswith("\n") else f"{before}\n"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    keys = {key.value: (key, value) for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    if isinstance(root, yaml.MappingNode) and root.flow_style:
        raise CannotImport("the file is one line of braces; write it as lines of keys, or add the servers by hand")
    if "servers" not in keys:
        return f"{text}\nservers:\n{_rendered(added, '  ', hide=hide)}"
    key, value = keys["servers"]
    lines = text.splitlines(keepends=True)
    if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
        first = value.value[0][0].start_mark
        return _with_lines(lines, key.end_mark.line, _rendered(added, " " * first.column, hide=hide))
    if isinstance(value, yaml.MappingNode) and not value.value:
        emptied = text[: value.start_mark.index].rstrip(" ") + text[value.end_mark.index :]
        return _with_lines(emptied.splitlines(keepends=True), key.end_mark.line, _rendered(added, "  ", hide=hide))
    if isinstance(value, yaml.ScalarNode):
        return _with_lines(lines, key.end_mark.line, _rendered(added, "  ", hide=hide))
    if "mcpServers" not in keys:
        return f"{text}\nmcpServers:\n{_rendered(added, '  ', hide=hide)}"
    raise CannotImport("servers is written in braces; write one server a line, or add the servers by hand")


def _with_lines(lines: list[str], after: int, new: str) -> str:
    return "".join([*lines[: after + 1], new, *lines[after + 1 :]])


def _rendered(added: dict[str, Found], indent: str, *, hide: bool) -> str:
    return "".join(_rendered_server(name, item.server, item.client, indent, hide=hide) for name, item in added.items())


def _rendered_server(name: str, server: Entry, client: str, indent: str, *, hide: bool) -> str:
    lines = [f"{indent}{name}:  # from {client}\n"]
    for key, value in server.items():
        shown = dict.fromkeys(value, "***") if hide and key in _SECRET_KEYS else value
        lines.append(f"{indent}{indent or '  '}{key}: {_flow(shown)}\n")
    return "".join(lines)


def _flow(value: Any) -> str:
    """A value in YAML's one-line form."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", value):
        return value
    return json.dumps(value, ensure_ascii=False)


class AlreadyInFront(Exception):
    """The gateway's entry is in the client's settings already."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """One settings file before and after; `existed` tells an empty file from none."""

    path: Path
    before: str
    after: str
    existed: bool
    places: tuple[SettingsPlace, ...]


def plan_takeover(client: Client, host: Host, gateway: Gateway, reach: Reach = Reach.ALL) -> list[FileChange]:
    """The changes that leave the client with the gateway, and with the servers that only the client itself can start.

    The gateway's entry goes to the user's own file, and to the shared one only if that is all that is changed.
    """
    changes: dict[Path, FileChange] = {}
    for place in places_of(client, host, reach):
        known = changes.get(place.path)
        before = known.before if known else read_settings(place.path)
        text = known.after if known else before
        servers = _servers(text, place)
        if any(is_gateway(name, client.read(entry)) for name, entry in servers.items()):
            raise AlreadyInFront(f"{client.title} already has the gateway's entry in {place.path}")
        kept = {name: entry for name, entry in servers.items() if why_it_stays(entry) is not None}
        if place.main or (place.shared and reach is Reach.SHARED):
            text = with_servers(text, place, {GATEWAY_NAME: client.write(gateway), **kept})
        elif len(kept) < len(servers):
            text = with_servers(text, place, kept)
        else:
            continue
        places = (*(known.places if known else ()), place)
        changes[place.path] = FileChange(place.path, before, text, place.path.exists(), places)
    return list(changes.values())


def _servers(text: str, place: SettingsPlace) -> dict[str, dict[str, object]]:
    try:
        return servers_in(text, place)
    except SettingsError as error:
        raise SettingsError(f"{place.path}: {error}") from None


class NothingToWrap(Exception):
    """There is no server to put the gateway in front of."""


def plan_wrap(client: Client, host: Host, config: Path | None, folder: Path) -> list[FileChange]:
    """The changes for one run of an agent; `folder` takes the temporary configuration when the user has none."""
    gathered = gather([client], host)
    before = read_settings(config) if config else ""
    plan = plan_import(gathered.found, before, str(config or "taskgate.yaml"))
    temporary = (config.absolute().parent if config else folder) / f".taskgate-wrap-{client.name}.yaml"
    changes = plan_takeover(client, host, Gateway(gateway_command(temporary if plan.added else config)))
    if plan.added:
        return [FileChange(temporary, "", plan.after, False, ()), *changes]
    if config is None:
        raise NothingToWrap(
            f"{client.title} has no servers, and there is no taskgate.yaml; add a server to one of them"
        )
    return changes
