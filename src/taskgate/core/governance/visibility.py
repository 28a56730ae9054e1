"""Which names are visible to a caller: a server's `expose` setting, and lists of allowed and denied names.

A hidden name gets the same response as a name that does not exist. An allow list always restricts tools, but resources
and prompts only if it has patterns for them (`resource:GLOB`, `prompt:GLOB`): `tools: ["read_*"]` does not restrict
resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, assert_never

from taskgate.core.patterns import NO_PATTERNS, PatternError, PatternKind, PatternSet

# Which names exist at all for a caller: a server's `expose` setting, lists of allowed and denied names, and the scope.
#
# A hidden name is answered exactly like a name that does not exist. A list restricts tools always, and resources or
# prompts only if it has patterns for them (`resource:GLOB`, `prompt:GLOB`): `tools: ["read_*"]` says nothing about
# resources. Selecting servers for a piece of work is `core.scoping`'s business; `within` puts its answer behind the
# same question.


class Layer(Protocol):
    """Anything that can say why a name is hidden."""

    def hides(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Why the name is hidden, for the log, or None when it is shown."""

    def hides_lookalike(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Why a name that looks like this one is denied, or None. Asked of names that no server listed."""


class ExposeMode(StrEnum):
    """How a server's `expose.tools` list is read."""

    ALL = "all"
    ALLOWLIST = "allowlist"
    BLOCKLIST = "blocklist"


@dataclass(frozen=True, slots=True)
class VisibilityLists:
    """One layer of allowing and denying. `allow` None means that this layer allows everything it does not deny."""

    allow: PatternSet | None = None
    deny: PatternSet = NO_PATTERNS

    def hides(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Why this layer hides the name, or None."""
        if self.deny.matches(server, name, kind):
            return "on a deny list"
        if self.allow is None or self.allow.matches(server, name, kind):
            return None
        silent = kind is not PatternKind.TOOL and all(pattern.kind is not kind for pattern in self.allow.patterns)
        # An empty list names nothing at all, so it is silent about nothing.
        return None if silent and self.allow.patterns else "not on the allow list"

    def hides_lookalike(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Whether the name looks like one on the deny list."""
        return "looks like a name on a deny list" if self.deny.resembled_by(server, name, kind) else None


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of each server."""

    per_server: Mapping[str, tuple[Layer, ...]]

    def hides(self, kind: PatternKind, server: str, name: str) -> str | None:
        """The first reason that any layer has, or None when every layer shows the name."""
        layers = self.per_server.get(server, ())
        return next((reason for layer in layers if (reason := layer.hides(kind, server, name)) is not None), None)

    def hides_lookalike(self, kind: PatternKind, server: str, name: str) -> str | None:
        """The first layer that denies a name which looks like this one."""
        layers = self.per_server.get(server, ())
        reasons = (layer.hides_lookalike(kind, server, name) for layer in layers)
        return next((reason for reason in reasons if reason is not None), None)


EVERYTHING_VISIBLE = Layers({})


def expose(mode: ExposeMode, tools: Iterable[str], *, server: str | None = None) -> VisibilityLists:
    """A server's `expose` setting as a layer. A bad pattern is a PatternError in every mode."""
    patterns = PatternSet.of(tools)
    for pattern in patterns.patterns:
        if server is not None and not pattern.server.matches(server):
            raise PatternError(pattern.text, f"speaks of another server, in the expose list of {server!r}")
    match mode:
        case ExposeMode.ALL:
            return VisibilityLists()
        case ExposeMode.ALLOWLIST:
            return VisibilityLists(allow=patterns)
        case ExposeMode.BLOCKLIST:
            return VisibilityLists(deny=patterns)
        case _:
            assert_never(mode)
