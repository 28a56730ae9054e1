"""Compute the text of `taskgate.yaml` after a client's servers are added to it. Pure.

Comments and the order of the file are kept; new servers come first under `servers:`. The result is parsed again before it
is returned, so a plan that would not load is never offered.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

import msgspec
import yaml

from taskgate.config.clients.client import Entry
from taskgate.config.clients.found_servers import Found, as_texts
from taskgate.config.document import read_document
from taskgate.config.problems import ConfigError
from taskgate.config.server_forms import normalize_servers, slug
from taskgate.config.tree import plain

_HEADER = "schema: 1\n"
_SECRET_KEYS = ("env", "headers")


class CannotImport(Exception):
    """The file cannot be changed safely; the message states what to do manually."""


class ImportPlan(msgspec.Struct, frozen=True):
    """A change that is not yet applied. `shown` is the new text with the values of variables and headers hidden."""

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
    """Return the change that adds these servers to the file. Raises CannotImport."""
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
        return ImportPlan(before=before, after=before, shown=before, added={}, passed_over=tuple(passed_over))
    after = _inserted(before, added, hide=False)
    if _servers_of(after, name) != known:
        raise CannotImport(f"{name} cannot be changed safely because of its formatting; add the servers manually")
    return ImportPlan(
        before=before,
        after=after,
        shown=_inserted(before, added, hide=True),
        added=added,
        passed_over=tuple(passed_over),
    )


def _servers_of(text: str, name: str) -> dict[str, Any]:
    try:
        _, block = normalize_servers(read_document(text, name))
    except ConfigError as error:
        raise CannotImport(f"{name} is invalid; correct it first:\n{error}") from None
    return {key: plain(entry.value) for key, entry in block.servers.items()}


def _name_for(item: Found, known: dict[str, Any]) -> tuple[str, str]:
    """Return the id for a server, or the reason why it is skipped."""
    folded = {name.casefold(): name for name in known}
    imported = as_texts(item.server)
    for name in (
        slug(item.name),
        slug(f"{item.name}-{item.client}"),
        *(slug(f"{item.name}-{n}") for n in range(2, 100)),
    ):
        same_name = folded.get(name.casefold())
        if same_name is None:
            return name, ""
        if known[same_name] == imported:
            return "", f'already present as "{same_name}"'
    return "", "too many servers have this name"


def _inserted(before: str, added: dict[str, Found], *, hide: bool) -> str:
    if not before.strip():
        return f"{_HEADER}servers:\n{_rendered(added, '  ', hide=hide)}"
    text = before if before.endswith("\n") else f"{before}\n"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    keys = {key.value: (key, value) for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    if isinstance(root, yaml.MappingNode) and root.flow_style:
        raise CannotImport("the file is in flow style ({...}); write one key per line, or add the servers manually")
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
    raise CannotImport("`servers` is in flow style ({...}); write one server per line, or add the servers manually")


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
    """Format a value in YAML flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", value):
        return value
    return json.dumps(value, ensure_ascii=False)
