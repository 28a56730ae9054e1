"""Patterns over names that servers offer: one language for rules and for expose, allow and deny lists.

A pattern is matched, case-sensitively, against the *server's own* name, never the name shown to callers. `server:glob`
restricts it to servers whose id matches the part before the colon; `resource:glob` and `prompt:glob` (or
`server:resource:glob`) match resource URIs and prompt names instead of tools; a URI and the glob over it are compared
in their normal form (`resource_uri`). A leading `-` has a meaning only in a session's request and is parsed there.
Lookalike patterns match the skeletons of names, for names that no server listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from taskgate.core.globs import KEPT_PATTERNS, MAX_PATTERN, AnyOf, Glob, PatternError
from taskgate.core.resource_uri import normal_form, normal_glob
from taskgate.core.text.lookalikes import skeleton


class PatternKind(StrEnum):
    """The kind of name that a pattern matches."""

    TOOL = "tool"
    RESOURCE = "resource"
    PROMPT = "prompt"


class Pattern(msgspec.Struct, frozen=True, eq=False):
    """One compiled pattern. Patterns with equal texts are equal."""

    text: str
    kind: PatternKind
    server: Glob
    name: Glob

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Pattern) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.text)

    @classmethod
    def compile(cls, text: str) -> Pattern:
        """Parse a pattern. Raises PatternError."""
        return _compile(text)

    def matches(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether this pattern matches `name` (the server's own name of a tool or prompt, or a URI) of that server."""
        if kind is not self.kind or not self.server.matches(server):
            return False
        return self.name.matches(normal_form(name) if kind is PatternKind.RESOURCE else name)

    def matches_lookalike(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether the name looks like a name that this pattern matches."""
        if kind is not self.kind or not self.server.matches(server):
            return False
        return self.name.lookalike.matches(checked_skeleton(name, kind))


def checked_skeleton(name: str, kind: PatternKind) -> str:
    """Return the skeleton of a name, or of the normal form of a URI."""
    return skeleton(normal_form(name) if kind is PatternKind.RESOURCE else name)


class PatternSet:
    """Several patterns, any of which may match. Compiled to one fast test per server, because catalogs are large."""

    __slots__ = ("_tests", "_texts", "patterns")

    def __init__(self, patterns: tuple[Pattern, ...] = ()) -> None:
        self.patterns: Final = patterns
        self._texts = tuple(pattern.text for pattern in patterns)
        self._tests: dict[PatternKind, tuple[AnyOf, tuple[Pattern, ...]]] = {}

    @classmethod
    def of(cls, texts: Iterable[str]) -> PatternSet:
        """Compile a list of texts, without duplicates."""
        made = cls(tuple(Pattern.compile(text) for text in dict.fromkeys(texts)))
        made._sorted(PatternKind.TOOL)  # when the configuration is loaded, not during the first call
        return made

    def __repr__(self) -> str:
        return f"PatternSet(patterns={self.patterns!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternSet) and self.patterns == other.patterns

    def __hash__(self) -> int:
        # Sets are parts of keys that are looked up with every call, so the hash is computed from strings, which cache
        # theirs.
        return hash(self._texts)

    def __or__(self, other: PatternSet) -> PatternSet:
        return PatternSet(tuple(dict.fromkeys(self.patterns + other.patterns)))

    def matches(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether any pattern matches."""
        return self.for_server(server, kind)(name)

    def matches_lookalike(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether the name looks like a name that any of these patterns matches."""
        return any(pattern.matches_lookalike(server, name, kind) for pattern in self.patterns)

    def for_server(self, server: str, kind: PatternKind = PatternKind.TOOL) -> AnyOf:
        """Return a test for names of one server, for checking many names."""
        general, limited = self._sorted(kind)
        special = [pattern.name for pattern in limited if pattern.server.matches(server)]
        return general | AnyOf.of(special, uris=kind is PatternKind.RESOURCE) if special else general

    def _sorted(self, kind: PatternKind) -> tuple[AnyOf, tuple[Pattern, ...]]:
        """Return one test for the patterns of all servers, and the patterns that are restricted to some."""
        found = self._tests.get(kind)
        if found is None:
            mine = [pattern for pattern in self.patterns if pattern.kind is kind]
            uris = kind is PatternKind.RESOURCE
            general = AnyOf.of((pattern.name for pattern in mine if pattern.server.everything), uris=uris)
            limited = tuple(pattern for pattern in mine if not pattern.server.everything)
            found = self._tests[kind] = (general, limited)
        return found


@lru_cache(maxsize=KEPT_PATTERNS)
def _compile(text: str) -> Pattern:
    if len(text) > MAX_PATTERN:
        raise PatternError(text, f"is longer than {MAX_PATTERN} characters")
    server, kind, glob = _parts(text)
    if text and (not server or not glob):
        raise PatternError(text, "has nothing on one side of the colon")
    compiled = Glob.compile(glob)
    if kind is PatternKind.RESOURCE:
        compiled = Glob.unchecked(normal_glob(glob))
    return Pattern(text, kind, Glob.compile(server), compiled)


def _parts(text: str) -> tuple[str, PatternKind, str]:
    head, colon, rest = text.partition(":")
    if not colon:
        return "*", PatternKind.TOOL, text
    if head in ("resource", "prompt", "tool"):
        return "*", PatternKind(head), rest
    word, colon, inner = rest.partition(":")
    if colon and word in ("resource", "prompt", "tool"):
        return head, PatternKind(word), inner
    return head, PatternKind.TOOL, rest


NO_PATTERNS = PatternSet()
ALL_TOOLS = PatternSet.of(["*"])
