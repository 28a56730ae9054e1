"""Which names are visible to a caller: a server's `expose` setting, and lists of allowed and denied names.

A hidden name gets the same response as a name that does not exist. An allow list always restricts tools, but resources
and prompts only if it has patterns for them (`resource:GLOB`, `prompt:GLOB`): `tools: ["read_*"]` does not restrict
resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Protocol, assert_never

import msgspec

from taskgate.core.globs import PatternError
from taskgate.core.patterns import NO_PATTERNS, PatternKind, PatternSet


class Layer(Protocol):
    """Decides whether a name is hidden."""

    def hides(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Return why the name is hidden, for the log, or None if it is visible."""

    def hides_lookalike(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Return why a name that looks like this one is denied, or None. For names that no server listed."""


class ExposeMode(StrEnum):
    """How a server's `expose.tools` list is interpreted."""

    ALL = "all"
    ALLOWLIST = "allowlist"
    BLOCKLIST = "blocklist"


class VisibilityLists(msgspec.Struct, frozen=True):
    """One allow and one deny list. `allow` None allows everything that is not denied."""

    allow: PatternSet | None = None
    deny: PatternSet = NO_PATTERNS

    def hides(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Return why this layer hides the name, or None."""
        if self.deny.matches(server, name, kind):
            return "on a deny list"
        if self.allow is None or self.allow.matches(server, name, kind):
            return None
        silent = kind is not PatternKind.TOOL and all(pattern.kind is not kind for pattern in self.allow.patterns)
        # An empty list allows nothing of any kind.
        return None if silent and self.allow.patterns else "not on the allow list"

    def hides_lookalike(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Return whether the name looks like one on the deny list."""
        return "looks like a name on a deny list" if self.deny.matches_lookalike(server, name, kind) else None


class Layers(msgspec.Struct, frozen=True):
    """The layers of each server."""

    per_server: Mapping[str, tuple[Layer, ...]]

    def hides(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Return the first reason of any layer, or None if every layer shows the name."""
        for layer in self.per_server.get(server, ()):
            reason = layer.hides(kind, server, name)
            if reason is not None:
                return reason
        return None

    def hides_lookalike(self, kind: PatternKind, server: str, name: str) -> str | None:
        """Return the first reason of any layer that denies a name which looks like this one."""
        layers = self.per_server.get(server, ())
        reasons = (layer.hides_lookalike(kind, server, name) for layer in layers)
        return next((reason for reason in reasons if reason is not None), None)


EVERYTHING_VISIBLE = Layers({})


def expose(mode: ExposeMode, tools: Iterable[str], *, server: str | None = None) -> VisibilityLists:
    """Return a server's `expose` setting as a layer. Raises PatternError in every mode."""
    patterns = PatternSet.of(tools)
    for pattern in patterns.patterns:
        if server is not None and not pattern.server.matches(server):
            raise PatternError(pattern.text, f"names another server, in the expose list of {server!r}")
    match mode:
        case ExposeMode.ALL:
            return VisibilityLists()
        case ExposeMode.ALLOWLIST:
            return VisibilityLists(allow=patterns)
        case ExposeMode.BLOCKLIST:
            return VisibilityLists(deny=patterns)
        case _:
            assert_never(mode)
