"""A scope: the policy of one piece of work, the middle of the three layers (platform, scope, session).

It defines which servers are used by default, which may be used at all, and which of their tools. `check` reports
problems of a scope before it is served; `subset.compose` applies it. Transports determine the scope of a caller, from
the URL or the token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

import msgspec

from taskgate.core.catalog.names import NameStyle
from taskgate.core.globs import Glob
from taskgate.core.patterns import NO_PATTERNS, PatternSet
from taskgate.core.scoping.profile import ResolvedProfile
from taskgate.core.scoping.registry import Registry
from taskgate.core.text.similar_names import similar_names


class ScopeMode(StrEnum):
    """What a scope lists: the tools themselves, the facade tools, both, or a search over the tools."""

    DIRECT = "direct"
    FACADE = "facade"
    BOTH = "both"
    SEARCH = "search"


FACADE_MODES: Final = (ScopeMode.FACADE, ScopeMode.BOTH)


class HelperTools(StrEnum):
    """When the tools for following tasks are listed."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class ScopePolicy(msgspec.Struct, frozen=True):
    """One scope. Server lists have ids or globs; without `allowed_servers` the default servers are the limit."""

    name: str = "default"
    default_servers: tuple[str, ...] = ()
    allowed_servers: tuple[str, ...] | None = None
    tool_allowlist: PatternSet | None = None
    tool_denylist: PatternSet = NO_PATTERNS
    profile: ResolvedProfile | None = None
    tags: tuple[str, ...] = ()
    mode: ScopeMode = ScopeMode.DIRECT
    names: NameStyle = NameStyle.PREFIXED
    enabled: bool = True
    helper_tools: HelperTools = HelperTools.AUTO
    scripts: bool = False
    """Whether its callers may run scripts. Never set where the interpreter is not installed."""

    @property
    def has_helpers(self) -> bool:
        """Whether its callers may call the tools for following tasks and answering questions."""
        return self.mode in FACADE_MODES or self.helper_tools is not HelperTools.NEVER

    def selected(self, registry: Registry) -> tuple[str, ...]:
        """Return the default servers in the order of the registry: those listed or tagged, within the profile's if
        there is one.

        A scope with a profile that lists nothing itself uses the profile's selection.
        """
        own = _picked(registry, self.default_servers, self.tags)
        if self.profile is None:
            return own
        bundle = _picked(registry, self.profile.servers, self.profile.tags)
        if self.default_servers or self.tags:
            return tuple(server for server in own if server in bundle)
        return bundle

    def ceiling(self, registry: Registry) -> tuple[str, ...]:
        """Return every server that a session of this scope may request."""
        if self.allowed_servers is None:
            return self.selected(registry)
        return _picked(registry, self.allowed_servers, ())

    def named_servers(self) -> tuple[str, ...]:
        """Return the servers that the scope or its profile names individually, whether or not they exist."""
        lists = (self.default_servers, self.allowed_servers or (), self.profile.servers if self.profile else ())
        return tuple(dict.fromkeys(text for names in lists for text in names if Glob.compile(text).literal))


class ScopeProblem(msgspec.Struct, frozen=True):
    """A problem of a scope. A scope with a fatal problem is not served; others are warnings."""

    scope: str
    message: str
    fatal: bool


def check(scope: ScopePolicy, registry: Registry) -> tuple[ScopeProblem, ...]:
    """Return all problems of a scope with the current registry."""
    return tuple(
        ScopeProblem(scope.name, f"Scope {scope.name!r}: {message}", fatal)
        for message, fatal in _problems(scope, registry)
    )


def _problems(scope: ScopePolicy, registry: Registry) -> Iterator[tuple[str, bool]]:
    if scope.allowed_servers is not None:
        allowed = [Glob.compile(text) for text in scope.allowed_servers]
        named = (text for text in scope.default_servers if Glob.compile(text).literal)
        outside = [text for text in named if not any(glob.matches(text) for glob in allowed)]
        if outside:
            yield f"default_servers has {_listed(outside)}, which allowed_servers does not allow.", True
    for server in scope.named_servers():
        if server not in registry.records:
            yield f"there is no server {server!r}.{_near(server, registry.records)}", False
    for tag in (*scope.tags, *(scope.profile.tags if scope.profile else ())):
        if tag not in registry.tags:
            yield f"no server has the tag {tag!r}.{_near(tag, registry.tags)}", False
    if scope.enabled and not scope.selected(registry):
        yield "it selects no server, so its callers see no tools.", False


def _picked(registry: Registry, names: tuple[str, ...], tags: tuple[str, ...]) -> tuple[str, ...]:
    globs = [Glob.compile(name) for name in names]
    requested = frozenset(tags)
    return tuple(
        record.id
        for record in registry.records.values()
        if requested & record.tags or any(glob.matches(record.id) for glob in globs)
    )


def _near(text: str, known: Iterable[str]) -> str:
    near = similar_names(text, sorted(known))
    return f" Did you mean {near[0]!r}?" if near else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
