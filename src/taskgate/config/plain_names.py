"""Collisions of plain tool names that a configuration file already shows, before any server was asked.

What only the servers' lists show is refused when they are merged. Called by `load`.
"""

from __future__ import annotations

from taskgate.config.problems import Problem, problem_at
from taskgate.config.references import GLOB_CHARACTERS, each, glob_of, tags_of
from taskgate.config.tree import Entry, Mapping, text_of


def plain_name_problems(root: Mapping, servers: dict[str, Entry]) -> list[Problem]:
    """With plain names, two servers may not bring the same tool: known here only of tools that the file names."""
    problems: list[Problem] = []
    for entry in root.map("scopes"):
        scope = entry.value
        if not isinstance(scope, Mapping) or scope.text("names") != "plain":
            continue
        denied = [glob for node, _ in each(scope.get("tool_denylist"), "") if (glob := glob_of(text_of(node) or ""))]
        owners: dict[str, str] = {}
        for name in _picked(servers, scope):
            for tool in _named_tools(servers[name]):
                if any(glob.matches(tool) for glob in denied):
                    continue
                owner = owners.setdefault(tool, name)
                if owner != name:
                    mark = scope.entries["names"].value.mark
                    message = f'servers "{owner}" and "{name}" both have the tool "{tool}"'
                    hint = "write names: prefixed, or deny one of them"
                    problems.append(problem_at(mark, f"scopes.{entry.key}.names", message, hint))
    return problems


def _picked(servers: dict[str, Entry], scope: Mapping) -> list[str]:
    words = [
        word
        for key in ("default_servers", "allowed_servers")
        for node, _ in each(scope.get(key), "")
        if (word := text_of(node)) is not None
    ]
    tags = {text_of(node) for node, _ in each(scope.get("tags"), "")}
    globs = [glob for word in words if (glob := glob_of(word)) is not None]
    return [
        name
        for name, server in servers.items()
        if any(glob.matches(name) for glob in globs) or tags & set(tags_of(server))
    ]


def _named_tools(server: Entry) -> list[str]:
    """The tools that a server is known to have, because the file calls them by name."""
    if not isinstance(server.value, Mapping):
        return []
    allowed = [text_of(node) or "" for node, _ in each(server.value.get("allowed_tools"), "")]
    named = [word for word in allowed if word and ":" not in word and not GLOB_CHARACTERS & set(word)]
    return list(dict.fromkeys([*named, *server.value.map("tools").entries]))
