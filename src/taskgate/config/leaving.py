"""What leaves a configuration file: the programs, addresses, files and references by which it affects more than the gateway itself,
and who may enter it.

A file that only a working folder leads to is used when the user has allowed exactly this set (`taskgate.consent`). It is computed
from the text, before any variable or file is read and any command is run. Everything counts as leaving unless `_WITHIN` names it,
so a key that is added to the configuration needs consent until someone decides otherwise.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Mapping as AnyMapping
from typing import Any

import msgspec

from taskgate.config.problems import ConfigError, Mark, Problem, problem_at
from taskgate.config.tree import Entry, KeyPath, Mapping, Node, Scalar, Sequence, key_name, plain
from taskgate.consent import Consent

SHOWN_AT_ONCE = 5
_ANY = "*"
_SERVER = "servers.*"
_WITHIN_SERVERS = """
    transport enabled disabled display_name tags namespace instances generation budgets trust_annotations tools expose allowed_tools
    approval_policy sampling questions restart
"""
_WITHIN_WORKFLOWS = """
    timeout on_timeout unsafe_on_timeout approvers approvals_needed self_approval redact_fields decision_valid_for max_auth_age
"""
_WITHIN_SECTIONS = """
    schema profile environment governance profiles scopes tasks apps completion limits pins validate errors history local compat
"""
_WITHIN = frozenset(
    [
        *((name,) for name in _WITHIN_SECTIONS.split()),
        *(("servers", _ANY, name) for name in _WITHIN_SERVERS.split()),
        *(("approval", _ANY, name) for name in _WITHIN_WORKFLOWS.split()),
        *(("listen", name) for name in ("host", "port")),
        *(("audit", name) for name in ("keep", "calls")),
        *(("telemetry", name) for name in ("metrics", "names", "trace_url", "log_level", "log_format")),
    ]
)
"""Keys that affect only the gateway itself. References in them count nevertheless. Keys that decide who may call it are not among
them: a later edit could open the allowed programs to others."""


class NotAllowed(ConfigError):
    """Something leaves the file that the user has not allowed."""


class Leaving(msgspec.Struct, frozen=True):
    """One thing that leaves a file: a server, a channel, a reference ... `kind` is its key without names and positions."""

    where: str
    kind: str
    value: Any
    mark: Mark

    @property
    def digest(self) -> str:
        """The digest that is allowed. A server keeps it when it is renamed, because nothing else leaves then."""
        text = json.dumps([self.kind, self.value], sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def text(self) -> str:
        """Describe it in one line, for the person who allows it. May contain control characters."""
        if self.kind == _SERVER and isinstance(self.value, dict):
            return f"{self.where}: {_server_text(self.value)}"
        return f"{self.where}: {_json(self.value)}"


def leaving(tree: Mapping, servers: AnyMapping[str, Entry]) -> list[Leaving]:
    """Return what leaves a file. `tree` has its environment merged and is without its `servers`, which are normalized."""
    found = [item for name, entry in servers.items() for item in server_leaving(name, entry.value)]
    for entry in tree:
        found += _leaving((entry.key,), entry.value)
    return found


def server_leaving(name: str, server: Node) -> list[Leaving]:
    """Return what leaves the normalized entry of one server."""
    return list(_leaving(("servers", name), server))


def require_consent(consent: Consent | None, items: Callable[[], Iterable[Leaving]]) -> None:
    """Raise NotAllowed if the configuration needs consent, and some of these are not allowed. Otherwise they are not computed."""
    if consent is None:
        return
    try:
        is_allowed = consent.checker()
    except OSError as problem:
        raise NotAllowed(
            [Problem(file=consent.watch, line=0, column=0, key="", message=problem.strerror or str(problem))]
        ) from None
    missing = [item for item in items() if not is_allowed(item.digest)]
    hint = f"the file is not used; read it, then run: {consent.command}"
    problems = [problem_at(item.mark, item.where, "is not allowed", hint) for item in missing[:SHOWN_AT_ONCE]]
    if missing:
        raise NotAllowed(problems)


def _leaving(path: KeyPath, node: Node) -> Iterator[Leaving]:
    if _is_within(path):
        yield from _references(path, node)
    elif isinstance(node, Mapping):
        yield from _of_mapping(path, node)
    elif isinstance(node, Sequence):
        for position, item in enumerate(node.items):
            yield from _leaving((*path, position), item)
    elif node.text is not None:
        yield _item(path, node.text, node.mark)


def _of_mapping(path: KeyPath, node: Mapping) -> Iterator[Leaving]:
    """A map with a value of its own is one thing: an allowed address with other allowed headers would be another."""
    within = [entry for entry in node if _is_within((*path, entry.key))]
    rest = [entry for entry in node if not _is_within((*path, entry.key))]
    if any(isinstance(entry.value, Scalar) for entry in rest):
        yield _item(path, {entry.key: plain(entry.value) for entry in rest}, node.mark)
        rest = []
    for entry in (*within, *rest):
        yield from _leaving((*path, entry.key), entry.value)


def _references(path: KeyPath, node: Node) -> Iterator[Leaving]:
    if isinstance(node, Mapping):
        for entry in node:
            yield from _references((*path, entry.key), entry.value)
    elif isinstance(node, Sequence):
        for position, item in enumerate(node.items):
            yield from _references((*path, position), item)
    elif node.text is not None and "${" in node.text:
        yield _item(path, node.text, node.mark)


def _item(path: KeyPath, value: Any, mark: Mark) -> Leaving:
    words = [str(step) for step in path if not isinstance(step, int)]
    if words[0] == "servers":
        words[1] = _ANY
    return Leaving(key_name(path), ".".join(words), value, mark)


def _is_within(path: KeyPath) -> bool:
    return path in _WITHIN or (len(path) == 3 and (path[0], _ANY, path[2]) in _WITHIN)


def _server_text(server: dict[str, Any]) -> str:
    parts = []
    rest = dict(server)
    if isinstance(rest.get("command"), str):
        args = rest.pop("args", None)
        words = [rest.pop("command"), *(args if isinstance(args, list) else ())]
        parts.append(f"runs {shlex.join(str(word) for word in words)}")
    if isinstance(rest.get("url"), str):
        parts.append(f"connects to {rest.pop('url')}")
    return ", ".join([*parts, *(f"{key} {_json(value)}" for key, value in rest.items())])


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
