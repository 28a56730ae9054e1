"""Profiles (bundles): named selections of servers and tools that several scopes share.

The servers and tags of a profile are added to those of the profiles that it extends; its allow and deny lists then
restrict the selection, and overrides of a scope can only restrict it further. `resolve_profile` returns one flat value;
no other code needs to know that profiles extend each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from taskgate.core.errors import CallerError
from taskgate.core.globs import Glob
from taskgate.core.patterns import NO_PATTERNS, PatternSet
from taskgate.core.text.similar_names import similar_names

MAX_PROFILE_DEPTH = 16


class ProfileError(CallerError):
    """A profile that does not exist, or that extends itself."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(error_type, message)


class Narrowing(msgspec.Struct, frozen=True):
    """Restrictions of one scope on top of a profile."""

    servers: tuple[str, ...] | None = None
    exclude_servers: tuple[str, ...] = ()
    tool_allowlist: PatternSet | None = None
    tool_denylist: PatternSet = NO_PATTERNS


class Profile(msgspec.Struct, frozen=True):
    """One profile as configured."""

    name: str
    extends: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    exclude_servers: tuple[str, ...] = ()
    tool_allowlist: PatternSet | None = None
    tool_denylist: PatternSet = NO_PATTERNS


class ResolvedProfile(msgspec.Struct, frozen=True):
    """A profile merged with all profiles that it extends. A tool must pass every allow list and no deny list."""

    name: str
    servers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    keep_servers: tuple[tuple[str, ...], ...] = ()
    exclude_servers: tuple[str, ...] = ()
    tool_allowlists: tuple[PatternSet, ...] = ()
    tool_denylist: PatternSet = NO_PATTERNS

    def narrowed(self, by: Narrowing) -> ResolvedProfile:
        """Return the profile with one more set of restrictions."""
        return replace(
            self,
            keep_servers=self.keep_servers if by.servers is None else (*self.keep_servers, by.servers),
            exclude_servers=_joined(self.exclude_servers, by.exclude_servers),
            tool_allowlists=_with(self.tool_allowlists, by.tool_allowlist),
            tool_denylist=self.tool_denylist | by.tool_denylist,
        )

    def keeps(self, server: str) -> bool:
        """Whether the restrictions permit that server; whether the profile selects it is a separate question."""
        if any(Glob.compile(text).matches(server) for text in self.exclude_servers):
            return False
        return all(any(Glob.compile(text).matches(server) for text in kept) for kept in self.keep_servers)


def resolve_profile(profiles: Mapping[str, Profile], name: str) -> ResolvedProfile:
    """Return the flat form of a profile. Raises ProfileError for an unknown name or a cycle."""
    return _resolved(profiles, name, ())


def _resolved(profiles: Mapping[str, Profile], name: str, path: tuple[str, ...]) -> ResolvedProfile:
    if name in path:
        circle = " -> ".join((*path[path.index(name) :], name))
        raise ProfileError("profile_cycle", f"Profiles extend each other in a cycle: {circle}. Remove one 'extends'.")
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
    needed_by = f", which profile {path[-1]!r} extends," if path else ""
    near = similar_names(name, profiles)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"The profile {name!r}{needed_by} does not exist.{hint}"
