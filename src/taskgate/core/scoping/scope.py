"""Profiles (bundles): named selections of servers and tools that several scopes share.

A profile's servers and tags are a union, also with those of the profiles it extends; its allow and deny lists then
narrow, and a scope's own overrides can only narrow further. Resolution turns a name into one flat value; nothing
downstream knows that profiles extend each other. It happens before any composition.

A scope: the policy of one piece of work, the middle of the three layers.

It says which servers the work uses by default, which it may ever use, and which tools of theirs. `check` finds what is
wrong with a scope before it serves anyone; `subset.compose` gives it effect. How a caller comes to its scope (address
or token) is decided at the inbound transports.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from taskgate.core.catalog.names import NameStyle
from taskgate.core.errors import CallerError
from taskgate.core.patterns import NO_PATTERNS, Glob, PatternSet
from taskgate.core.scoping.registry import Registry

MAX_PROFILE_DEPTH = 16


class ProfileError(CallerError):
    """A profile that is not there, or that extends itself."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(error_type, message)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Constraints that one scope puts on top of a profile. Every field can only take away."""

    servers: tuple[str, ...] | None = None
    exclude_servers: tuple[str, ...] = ()
    tool_allowlist: PatternSet | None = None
    tool_denylist: PatternSet = NO_PATTERNS


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile as it is written down."""

    name: str
    extends: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    exclude_servers: tuple[str, ...] = ()
    tool_allowlist: PatternSet | None = None
    tool_denylist: PatternSet = NO_PATTERNS


@dataclass(frozen=True, slots=True)
class ResolvedProfile:
    """A profile with everything it extends folded in. A tool must pass every allow list and no deny list."""

    name: str
    servers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    keep_servers: tuple[tuple[str, ...], ...] = ()
    exclude_servers: tuple[str, ...] = ()
    tool_allowlists: tuple[PatternSet, ...] = ()
    tool_denylist: PatternSet = NO_PATTERNS

    def narrowed(self, by: Narrowing) -> ResolvedProfile:
        """The same profile under one more set of constraints."""
        return replace(
            self,
            keep_servers=self.keep_servers if by.servers is None else (*self.keep_servers, by.servers),
            exclude_servers=_joined(self.exclude_servers, by.exclude_servers),
            tool_allowlists=_with(self.tool_allowlists, by.tool_allowlist),
            tool_denylist=self.tool_denylist | by.tool_denylist,
        )

    def keeps(self, server: str) -> bool:
        """Whether the profile's constraints leave that server in; whether it selects it is another question."""
        if any(Glob.compile(text).matches(server) for text in self.exclude_servers):
            return False
        return all(any(Glob.compile(text).matches(server) for text in kept) for kept in self.keep_servers)


def resolve_profile(profiles: Mapping[str, Profile], name: str) -> ResolvedProfile:
    """The flat form of one profile. Raises ProfileError for an unknown name or a circle."""
    return _resolved(profiles, name, ())


def _resolved(profiles: Mapping[str, Profile], name: str, path: tuple[str, ...]) -> ResolvedProfile:
    if name in path:
        circle = " -> ".join((*path[path.index(name) :], name))
        raise ProfileError("profile_cycle", f"Profiles extend each other in a circle: {circle}. Remove one 'extends'.")
    if len(path) >= MAX_PROFILE_DEPTH:
        raise ProfileError("profile_too_deep", f"Profile {path[0]!r} extends more than {MAX_PROFILE_DEPTH} levels.")
    profile = profiles.get(name)
    if profile is None:
        raise ProfileError("unknown_profile", _unknown(name, profiles, path))
    flat = ResolvedProfile(name)
    for parent in profile.extends:
        flat = _union(flat, _resolved(profiles, parent, (*path, name)))
    flat = replace(flat, servers=_joined(flat.servers, profile.servers), tags=_joined(flat.tags, profile.tags))
    return flat.narrowed(Narrowing(None, profile.exclude_servers, profile.tool_allowlist, profile.tool_denylist))


def _union(left: ResolvedProfile, right: ResolvedProfile) -> ResolvedProfile:
    return replace(
        left,
        servers=_joined(left.servers, right.servers),
        tags=_joined(left.tags, right.tags),
        keep_servers=tuple(dict.fromkeys(left.keep_servers + right.keep_servers)),
        exclude_servers=_joined(left.exclude_servers, right.exclude_servers),
        tool_allowlists=tuple(dict.fromkeys(left.tool_allowlists + right.tool_allowlists)),
        tool_denylist=left.tool_denylist | right.tool_denylist,
    )


def _joined(left: Iterable[str], right: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*left, *right)))


def _with(lists: tuple[PatternSet, ...], more: PatternSet | None) -> tuple[PatternSet, ...]:
    return lists if more is None or more in lists else (*lists, more)


def _unknown(name: str, profiles: Mapping[str, Profile], path: tuple[str, ...]) -> str:
    wanted_by = f", which profile {path[-1]!r} extends," if path else ""
    near = difflib.get_close_matches(name, profiles, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"The profile {name!r}{wanted_by} does not exist.{hint}"


class ScopeMode(StrEnum):
    """What a scope shows: the tools themselves, the facade tools, both, or a search over the tools."""

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


@dataclass(frozen=True, slots=True)
class ScopePolicy:
    """One scope. Server lists hold ids or globs; without `allowed_servers` the default servers are the limit."""

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

    @property
    def has_helpers(self) -> bool:
        """Whether its callers may call the tools for following tasks and answering questions."""
        return self.mode in FACADE_MODES or self.helper_tools is not HelperTools.NEVER

    def selected(self, registry: Registry) -> tuple[str, ...]:
        """The default servers, in the registry's order: those listed or tagged, within the profile's where there is
        one.

        A scope that has a profile and lists nothing itself takes the profile's selection.
        """
        own = _picked(registry, self.default_servers, self.tags)
        if self.profile is None:
            return own
        bundle = _picked(registry, self.profile.servers, self.profile.tags)
        if self.default_servers or self.tags:
            return tuple(server for server in own if server in bundle)
        return bundle

    def ceiling(self, registry: Registry) -> tuple[str, ...]:
        """Every server that a session of this scope may ask for."""
        if self.allowed_servers is None:
            return self.selected(registry)
        return _picked(registry, self.allowed_servers, ())

    def named_servers(self) -> tuple[str, ...]:
        """The servers that the scope or its profile names one by one, whether or not they exist."""
        lists = (self.default_servers, self.allowed_servers or (), self.profile.servers if self.profile else ())
        return tuple(dict.fromkeys(text for names in lists for text in names if Glob.compile(text).literal))


@dataclass(frozen=True, slots=True)
class ScopeProblem:
    """Something wrong with a scope. A fatal problem keeps the scope from being served; the others are warnings."""

    scope: str
    message: str
    fatal: bool


def check(scope: ScopePolicy, registry: Registry) -> tuple[ScopeProblem, ...]:
    """Everything that is wrong with a scope against the registry as it is now."""
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
            yield f"no server bears the tag {tag!r}.{_near(tag, registry.tags)}", False
    if scope.enabled and not scope.selected(registry):
        yield "it selects no server, so its callers see no tools.", False


def _picked(registry: Registry, names: tuple[str, ...], tags: tuple[str, ...]) -> tuple[str, ...]:
    globs = [Glob.compile(name) for name in names]
    wanted = frozenset(tags)
    return tuple(
        record.id
        for record in registry.records.values()
        if wanted & record.tags or any(glob.matches(record.id) for glob in globs)
    )


def _near(text: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(text, sorted(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
