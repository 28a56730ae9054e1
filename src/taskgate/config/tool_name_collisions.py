"""Detect tool names that collide in a scope with `names: plain`, before any server is started.

The tools of a scope are computed by the function that serves it (`subset.compose`), so profiles, tags and lists apply
here as they do at run time. Collisions that only the servers' own lists show are reported when those are merged.
"""

from __future__ import annotations

from taskgate.config.cross_references import GLOB_CHARACTERS, each, tags_of
from taskgate.config.problems import Problem, problem_at
from taskgate.config.tree import Entry, Mapping, text_of
from taskgate.core.errors import TaskgateError
from taskgate.core.patterns import ALL_TOOLS, PatternSet
from taskgate.core.scoping.profile import Narrowing, Profile, ResolvedProfile, resolve_profile
from taskgate.core.scoping.registry import Registry, RegistryRecord
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import Subset, compose

_EVERYTHING = SessionRequest((("*",),))
"""Everything that a session may request, not only its default servers."""


def plain_name_problems(root: Mapping, servers: dict[str, Entry]) -> list[Problem]:
    """Return a problem for each tool name that two servers of a `names: plain` scope share, as far as the file names tools."""
    problems: list[Problem] = []
    for entry in root.map("scopes"):
        scope = entry.value
        if not isinstance(scope, Mapping) or scope.text("names") != "plain":
            continue
        try:
            subset = subset_of(root, registry_of(servers), entry.key, scope)
        except TaskgateError:
            # An invalid pattern or profile is reported at its own position.
            continue
        mark = scope.entries["names"].value.mark
        problems += [
            problem_at(mark, f"scopes.{entry.key}.names", message, "write names: prefixed, or deny one of the tools")
            for message in _collisions(subset, servers)
        ]
    return problems


def _collisions(subset: Subset, servers: dict[str, Entry]) -> list[str]:
    found: list[str] = []
    owners: dict[str, str] = {}
    for name in subset.servers:
        for tool in subset.admitted(name, _named_tools(servers[name])):
            owner = owners.setdefault(tool, name)
            if owner != name:
                found.append(f'servers "{owner}" and "{name}" both have the tool "{tool}"')
    return found


def registry_of(servers: dict[str, Entry]) -> Registry:
    """Return the servers of a file, as far as the selection of servers and tools by a scope depends on them."""
    return Registry.build(map(_record, servers.values()))


def subset_of(root: Mapping, registry: Registry, name: str, scope: Mapping) -> Subset:
    """Return all that a session of a scope may request. Raises TaskgateError for an invalid pattern or profile."""
    policy = ScopePolicy(
        name=name,
        default_servers=_words(scope, "default_servers"),
        allowed_servers=_words(scope, "allowed_servers") if "allowed_servers" in scope.entries else None,
        tool_allowlist=_patterns(scope, "tool_allowlist"),
        tool_denylist=_patterns(scope, "tool_denylist") or PatternSet(),
        profile=_profile(root, scope),
        tags=_words(scope, "tags"),
    )
    return compose(registry, policy, _EVERYTHING, strict=False)


def _profile(root: Mapping, scope: Mapping) -> ResolvedProfile | None:
    name = scope.text("profile")
    if name is None:
        return None
    written = {
        entry.key: Profile(
            name=entry.key,
            extends=_words(entry.value, "extends"),
            servers=_words(entry.value, "servers"),
            tags=_words(entry.value, "tags"),
            exclude_servers=_words(entry.value, "exclude_servers"),
            tool_allowlist=_patterns(entry.value, "tool_allowlist"),
            tool_denylist=_patterns(entry.value, "tool_denylist") or PatternSet(),
        )
        for entry in root.map("profiles")
        if isinstance(entry.value, Mapping)
    }
    more = scope.map("profile_overrides")
    narrowing = Narrowing(
        _words(more, "servers") if "servers" in more.entries else None,
        _words(more, "exclude_servers"),
        _patterns(more, "tool_allowlist"),
        _patterns(more, "tool_denylist") or PatternSet(),
    )
    return resolve_profile(written, name).narrowed(narrowing)


def _record(server: Entry) -> RegistryRecord:
    allowed = _patterns(server.value, "allowed_tools") if isinstance(server.value, Mapping) else None
    return RegistryRecord(
        server.key, allowed_tools=ALL_TOOLS if allowed is None else allowed, tags=frozenset(tags_of(server))
    )


def _words(owner: Mapping, key: str) -> tuple[str, ...]:
    return tuple(word for node, _ in each(owner.get(key), "") if (word := text_of(node)) is not None)


def _patterns(owner: Mapping, key: str) -> PatternSet | None:
    return PatternSet.of(_words(owner, key)) if key in owner.entries else None


def _named_tools(server: Entry) -> list[str]:
    """Return the tools of a server that the file mentions by name."""
    if not isinstance(server.value, Mapping):
        return []
    allowed = _words(server.value, "allowed_tools")
    named = [word for word in allowed if word and ":" not in word and not GLOB_CHARACTERS & set(word)]
    return list(dict.fromkeys([*named, *server.value.map("tools").entries]))
