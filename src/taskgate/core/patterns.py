"""Globs over what upstreams offer: the one pattern language of rules, expose, allow and deny lists.

A pattern is matched, case-sensitively, against the *upstream's own* name, never the name shown to callers.
`server:glob` limits it to servers whose id matches the part before the colon; `resource:glob` and `prompt:glob` (or
`server:resource:glob`) match resource URIs and prompt names instead of tools. In a glob `*` is any run of characters,
`?` is any one, `[abc]`, `[a-z]` and `[!abc]` are classes. Scoping and governance both use it; a leading `-` is
meaningful only in a session's request and is read there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from taskgate.core.errors import CallerError

MAX_PATTERN = 512


class PatternError(CallerError):
    """A pattern that cannot be read. The message quotes it and says what is wrong."""

    def __init__(self, text: str, problem: str) -> None:
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        super().__init__("bad_pattern", f"The pattern {shown!r} {problem}.", data={"pattern": shown})


class PatternKind(StrEnum):
    """What kind of thing a pattern speaks about."""

    TOOL = "tool"
    RESOURCE = "resource"
    PROMPT = "prompt"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One compiled pattern. Equal texts are equal patterns."""

    text: str
    kind: PatternKind = field(compare=False)
    server: str = field(compare=False)
    glob: str = field(compare=False)
    _server: re.Pattern[str] | None = field(compare=False, repr=False)
    _name: re.Pattern[str] | None = field(compare=False, repr=False)

    @classmethod
    def compile(cls, text: str) -> Pattern:
        """Read a pattern, or raise PatternError."""
        return _compile(text)

    def matches(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether this pattern speaks about `name` (a tool's or prompt's own name, or a URI) of that server."""
        return (
            kind is self.kind
            and self.concerns(server)
            and (self._name is None or self._name.fullmatch(name) is not None)
        )

    def concerns(self, server: str) -> bool:
        """Whether this pattern can match anything of that server."""
        return self._server is None or self._server.fullmatch(server) is not None


@dataclass(frozen=True, slots=True)
class PatternSet:
    """Several patterns of which any one may match. Reduced to one quick test per server, because catalogs are large."""

    patterns: tuple[Pattern, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> PatternSet:
        """Compile a list of texts, dropping repetitions."""
        return cls(tuple(Pattern.compile(text) for text in dict.fromkeys(texts)))

    def matches(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether any pattern matches."""
        return any(pattern.matches(server, name, kind) for pattern in self.patterns)

    def for_server(self, server: str, kind: PatternKind = PatternKind.TOOL) -> Callable[[str], bool]:
        """A test of names of one server, for whoever has many names to ask about."""
        globs = frozenset(p.glob for p in self.patterns if p.kind is kind and p.concerns(server))
        return _name_test(globs)


@lru_cache(maxsize=4096)
def _compile(text: str) -> Pattern:
    if not text:
        raise PatternError(text, "is empty; write * to match everything")
    if len(text) > MAX_PATTERN:
        raise PatternError(text, f"is longer than {MAX_PATTERN} characters")
    if text != text.strip() or not text.isprintable():
        raise PatternError(text, "has spaces around it or characters that cannot be seen")
    server, kind, glob = _parts(text)
    if not server or not glob:
        raise PatternError(text, "has nothing on one side of the colon")
    server_test = None if server == "*" else _regex(text, server)
    return Pattern(text, kind, server, glob, server_test, None if glob == "*" else _regex(text, glob))


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


def _regex(text: str, glob: str) -> re.Pattern[str]:
    return re.compile(_translate(text, glob), re.DOTALL)


def _translate(text: str, glob: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "*":
            if out[-1:] != [".*"]:
                out.append(".*")
        elif char == "?":
            out.append(".")
        elif char == "[":
            piece, at = _character_class(text, glob, at)
            out.append(piece)
        else:
            out.append(re.escape(char))
    return _without_backtracking(out)


def _without_backtracking(pieces: list[str]) -> str:
    # Every star but the last is matched lazily and for good (an atomic group), which is right for globs and keeps
    # hostile names from costing exponential time.
    segments: list[str] = [""]
    for piece in pieces:
        if piece == ".*":
            segments.append("")
        else:
            segments[-1] += piece
    if len(segments) == 1:
        return segments[0]
    first, *middle, last = segments
    return first + "".join(f"(?>.*?{segment})" for segment in middle) + f".*{last}"


def _character_class(text: str, glob: str, at: int) -> tuple[str, int]:
    negated = glob[at : at + 1] == "!"
    start = at + 1 if negated else at
    end = glob.find("]", start + 1)
    if end == -1:
        raise PatternError(text, "opens a [ that is never closed; write [[] for the character itself")
    members = glob[start:end]
    parts: list[str] = []
    at = 0
    while at < len(members):
        low, high = members[at], members[at + 2 : at + 3]
        if members[at + 1 : at + 2] == "-" and high:
            if low > high:
                raise PatternError(text, f"has the range {low}-{high} the wrong way round")
            parts.append(f"{re.escape(low)}-{re.escape(high)}")
            at += 3
        else:
            parts.append(re.escape(low))
            at += 1
    return f"[{'^' if negated else ''}{''.join(parts)}]", end + 1


@lru_cache(maxsize=4096)
def _name_test(globs: frozenset[str]) -> Callable[[str], bool]:
    """One function for any number of globs: exact names and plain heads and tails cost no regular expression."""
    if "*" in globs:
        return _everything
    if not globs:
        return _nothing
    exact, heads, tails, rest = _sorted_by_shape(globs)
    pattern = re.compile("|".join(f"(?:{piece})" for piece in rest), re.DOTALL).fullmatch if rest else None
    if pattern is None:
        return lambda name: name in exact or name.startswith(heads) or name.endswith(tails)
    search = pattern
    return lambda name: name in exact or name.startswith(heads) or name.endswith(tails) or search(name) is not None


def _sorted_by_shape(globs: frozenset[str]) -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...], list[str]]:
    exact, heads, tails, rest = [], [], [], []
    for glob in sorted(globs):
        if not any(c in glob for c in "*?["):
            exact.append(glob)
        elif not any(c in glob[:-1] for c in "*?[") and glob[-1] == "*":
            heads.append(glob[:-1])
        elif not any(c in glob[1:] for c in "*?[") and glob[0] == "*":
            tails.append(glob[1:])
        else:
            rest.append(_translate(glob, glob))
    return frozenset(exact), tuple(heads), tuple(tails), rest


def _everything(_: str) -> bool:
    return True


def _nothing(_: str) -> bool:
    return False
