"""Rewrite scopes that are given as `mcp.*` strings to the form that the model validates."""

from __future__ import annotations

from taskgate.config.json_text import read_json
from taskgate.config.problems import ConfigError, Problem, did_you_mean, one_of, problem_at
from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence

_LISTS = {
    "mcp.default_server_ids": "default_servers",
    "mcp.allowed_server_ids": "allowed_servers",
    "mcp.tool_allowlist": "tool_allowlist",
    "mcp.tool_denylist": "tool_denylist",
    "mcp.tags": "tags",
}
_WORDS = {"mcp.profile": "profile", "mcp.mode": "mode", "mcp.names": "names", "mcp.helper_tools": "helper_tools"}
_OVERRIDES = {"server_ids": "servers", "default_server_ids": "servers"}
_KNOWN = ["mcp.enabled", *_WORDS, "mcp.profile_overrides", *_LISTS]


def normalize_scopes(root: Mapping) -> tuple[Mapping, list[Problem]]:
    """Return the root with every scope in normalized form, and problems."""
    scopes = root.get("scopes")
    if not isinstance(scopes, Mapping):
        return root, []
    problems: list[Problem] = []
    for entry in scopes:
        if isinstance(entry.value, Mapping):
            scope = _in_our_form(entry.value, f"scopes.{entry.key}", problems)
            scopes = scopes.with_value(entry.key, scope)
    return root.with_value("scopes", scopes), problems


def _in_our_form(scope: Mapping, path: str, problems: list[Problem]) -> Mapping:
    settings = scope.get("config")
    if isinstance(settings, Mapping):
        return _converted(settings, f"{path}.config", problems).with_entries(*scope.without("config"))
    strings = [entry for entry in scope if entry.key.startswith("mcp.")]
    if not strings:
        return scope
    rest = scope.without(*(entry.key for entry in strings))
    given = Mapping({entry.key: entry for entry in strings}, scope.mark)
    return _converted(given, path, problems).with_entries(*rest)


def _converted(settings: Mapping, path: str, problems: list[Problem]) -> Mapping:
    scope = Mapping({}, settings.mark).with_value("enabled", _switch(settings, path, problems))
    scope = scope.with_value("default_servers", Sequence((), settings.mark))
    if "mcp.profile" in settings.entries or "mcp.tags" in settings.entries:
        scope = scope.without("default_servers")
    for entry in settings:
        if not entry.key.startswith("mcp.") or entry.key == "mcp.enabled":
            continue
        key = f"{path}.{entry.key}"
        if entry.key in _LISTS:
            scope = scope.with_value(_LISTS[entry.key], _list(entry, key, problems), entry.key_mark)
        elif entry.key in _WORDS:
            scope = scope.with_value(_WORDS[entry.key], entry.value, entry.key_mark)
        elif entry.key == "mcp.profile_overrides":
            scope = scope.with_value("profile_overrides", _overrides(entry, key, problems), entry.key_mark)
        else:
            hint = did_you_mean(entry.key, _KNOWN) or f"known keys: {one_of(_KNOWN)}"
            problems.append(problem_at(entry.key_mark, key, "unknown key", hint))
    return scope


def _switch(settings: Mapping, path: str, problems: list[Problem]) -> Scalar:
    entry = settings.entries.get("mcp.enabled")
    if entry is None:
        return Scalar("false", settings.mark)
    text = settings.text("mcp.enabled")
    if text not in ("true", "false"):
        problems.append(problem_at(entry.key_mark, f"{path}.mcp.enabled", 'must be "true" or "false"'))
    return Scalar(text if text in ("true", "false") else "false", entry.value.mark)


def _list(entry: Entry, key: str, problems: list[Problem]) -> Sequence:
    value = entry.value
    if isinstance(value, Sequence):
        return value
    text = value.text if isinstance(value, Scalar) else None
    if text is None:
        problems.append(problem_at(entry.key_mark, key, "must be a list", 'write ["a","b"] or a,b'))
        return Sequence((), value.mark)
    if not text.strip().startswith("["):
        words = [word.strip() for word in text.split(",") if word.strip()]
        return Sequence(tuple(Scalar(word, value.mark) for word in words), value.mark)
    node = _json(text, entry, key, problems)
    if isinstance(node, Sequence):
        return Sequence(tuple(_moved(item, value) for item in node.items), value.mark)
    return Sequence((), value.mark)


def _overrides(entry: Entry, key: str, problems: list[Problem]) -> Node:
    value = entry.value
    node = _json(value.text, entry, key, problems) if isinstance(value, Scalar) and value.text else value
    if not isinstance(node, Mapping):
        problems.append(problem_at(entry.key_mark, key, "must be a JSON object", 'write {"tool_denylist": ["x"]}'))
        return Mapping({}, value.mark)
    result = Mapping({}, value.mark)
    for part in node:
        name = part.key.removeprefix("mcp.")
        result = result.with_value(_OVERRIDES.get(name, name), _moved(part.value, value), entry.key_mark)
    return result


def _json(text: str, entry: Entry, key: str, problems: list[Problem]) -> Node | None:
    try:
        return read_json(text, entry.key_mark.file)
    except ConfigError as error:
        problems.append(problem_at(entry.key_mark, key, error.problems[0].message))
        return None


def _moved(node: Node, to: Node) -> Node:
    """Return the node with the position of the string that it was parsed from."""
    match node:
        case Scalar():
            return Scalar(node.text, to.mark)
        case Sequence():
            return Sequence(tuple(_moved(item, to) for item in node.items), to.mark)
        case Mapping():
            return Mapping({e.key: Entry(e.key, to.mark, _moved(e.value, to)) for e in node}, to.mark)
