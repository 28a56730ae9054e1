"""Globs over what upstreams offer: the one pattern language of rules, expose, allow and deny lists.

A pattern is matched, case-sensitively, against the *upstream's own* name, never the name shown to callers.
`server:glob` limits it to servers whose id matches the part before the colon; `resource:glob` and `prompt:glob` (or
`server:resource:glob`) match resource URIs and prompt names instead of tools; a URI and the glob over it are compared
in their normal form (`resource_uri`). In a glob `*` is any run of characters, `?` is any one, `[abc]`, `[a-z]` and
`[!abc]` are classes. Scoping and governance both use it; a leading `-` is meaningful only in a session's request and is
read there. `lookalike` patterns match the skeletons of names instead, for names that no server listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from taskgate.core.errors import CallerError
from taskgate.core.resource_uri import normal_form, normal_glob
from taskgate.core.text.lookalikes import skeleton

MAX_PATTERN = 512

_Truth = Callable[[str], object]


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


class _Shape(StrEnum):
    """Shapes for which one string operation does; only character classes and `?` need a regular expression."""

    ALL = "all"
    EXACT = "exact"
    HEAD = "head"
    TAIL = "tail"
    GENERAL = "general"


@dataclass(frozen=True, slots=True)
class Glob:
    """One compiled glob over a name. Equal texts are equal globs."""

    text: str
    shape: _Shape = field(compare=False, repr=False)
    truth: _Truth = field(compare=False, repr=False)
    needle: str = field(default="", compare=False, repr=False)

    @classmethod
    def compile(cls, text: str) -> Glob:
        """Read a glob, or raise PatternError."""
        return _compile_glob(text)

    def matches(self, name: str) -> bool:
        """Whether this glob covers the whole name."""
        return bool(self.truth(name))

    def covers(self, other: Glob) -> bool:
        """Whether this glob is known to match every name that the other one matches. False where that is not certain."""
        return _covers(_GLOB_TOKENS.findall(self.text), _GLOB_TOKENS.findall(other.text))

    @property
    def literal(self) -> bool:
        """Whether this glob names exactly one thing."""
        return self.shape is _Shape.EXACT

    @property
    def everything(self) -> bool:
        """Whether this glob covers every name."""
        return self.shape is _Shape.ALL

    @property
    def tail(self) -> str | None:
        """The end that a name must have, where nothing else is asked of it."""
        return self.text.lstrip("*") if self.shape is _Shape.TAIL else None

    @property
    def lookalike(self) -> Glob:
        """The same glob over the skeletons of names: its letters folded, its wildcards kept."""
        return _lookalike_glob(self.text)


_GLOB_TOKENS = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
"""The parts of a glob that one character of a name, or with `*` any run of them, is compared with."""


def _covers(wide: list[str], narrow: list[str]) -> bool:
    """Row by row: `reached[i]` is whether the first parts of `narrow` are covered by the first i parts of `wide`."""
    reached = [all(part == "*" for part in wide[:count]) for count in range(len(wide) + 1)]
    for part in narrow:
        row = [False]
        for count, cover in enumerate(wide, 1):
            if cover == "*":
                row.append(row[-1] or reached[count])
            else:
                row.append(reached[count - 1] and _covers_one(cover, part))
        reached = row
    return reached[-1]


def _covers_one(wide: str, narrow: str) -> bool:
    if wide == narrow:
        return True
    if narrow == "*":
        return False
    if wide == "?":
        return True
    return len(wide) > 1 and len(narrow) == 1 and narrow != "?" and Glob.compile(wide).matches(narrow)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One compiled pattern. Equal texts are equal patterns."""

    text: str
    kind: PatternKind = field(compare=False)
    server: Glob = field(compare=False)
    name: Glob = field(compare=False)

    @classmethod
    def compile(cls, text: str) -> Pattern:
        """Read a pattern, or raise PatternError."""
        return _compile(text)

    def matches(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether this pattern speaks about `name` (a tool's or prompt's own name, or a URI) of that server."""
        if kind is not self.kind or not self.server.matches(server):
            return False
        return self.name.matches(normal_form(name) if kind is PatternKind.RESOURCE else name)

    def resembled_by(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether a name looks like one that this pattern speaks about."""
        if kind is not self.kind or not self.server.matches(server):
            return False
        return self.name.lookalike.matches(judged_skeleton(name, kind))


def judged_skeleton(name: str, kind: PatternKind) -> str:
    """The skeleton of a name, of a URI that of its normal form."""
    return skeleton(normal_form(name) if kind is PatternKind.RESOURCE else name)


@dataclass(frozen=True, slots=True)
class PatternSet:
    """Several patterns of which any one may match. Reduced to one quick test per server, because catalogs are large."""

    patterns: tuple[Pattern, ...] = ()
    _texts: tuple[str, ...] = field(init=False, compare=False, repr=False)
    _tests: dict[PatternKind, tuple[AnyOf, tuple[Pattern, ...]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def of(cls, texts: Iterable[str]) -> PatternSet:
        """Compile a list of texts, dropping repetitions."""
        made = cls(tuple(Pattern.compile(text) for text in dict.fromkeys(texts)))
        made._sorted(PatternKind.TOOL)  # now, when a file is read, rather than in somebody's first call
        return made

    def __post_init__(self) -> None:
        object.__setattr__(self, "_texts", tuple(pattern.text for pattern in self.patterns))

    def __hash__(self) -> int:
        # Sets are parts of keys that are looked up with every call, so the hash is made of texts that know theirs
        # already.
        return hash(self._texts)

    def __or__(self, other: PatternSet) -> PatternSet:
        return PatternSet(tuple(dict.fromkeys(self.patterns + other.patterns)))

    def matches(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether any pattern matches."""
        return self.for_server(server, kind)(name)

    def resembled_by(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> bool:
        """Whether a name looks like one that any of these patterns speaks about."""
        return any(pattern.resembled_by(server, name, kind) for pattern in self.patterns)

    def for_server(self, server: str, kind: PatternKind = PatternKind.TOOL) -> AnyOf:
        """A test of names of one server, for whoever has many names to ask about."""
        general, limited = self._sorted(kind)
        special = [pattern.name for pattern in limited if pattern.server.matches(server)]
        return general | AnyOf.of(special, uris=kind is PatternKind.RESOURCE) if special else general

    def _sorted(self, kind: PatternKind) -> tuple[AnyOf, tuple[Pattern, ...]]:
        """What holds for all servers as one test, and the patterns limited to some."""
        found = self._tests.get(kind)
        if found is None:
            mine = [pattern for pattern in self.patterns if pattern.kind is kind]
            uris = kind is PatternKind.RESOURCE
            general = AnyOf.of((pattern.name for pattern in mine if pattern.server.shape is _Shape.ALL), uris=uris)
            limited = tuple(pattern for pattern in mine if pattern.server.shape is not _Shape.ALL)
            found = self._tests[kind] = (general, limited)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf:
    """Many globs as one test, in which all exact names, all heads and all tails cost one operation each."""

    everything: bool
    exact: frozenset[str]
    heads: tuple[str, ...]
    tails: tuple[str, ...]
    # Each with its longest literal part: to look for that first spares most names the full test.
    rest: tuple[tuple[str, _Truth], ...]
    uris: bool = False
    """Names are URIs, and are compared in their normal form."""

    @classmethod
    def of(cls, globs: Iterable[Glob], *, uris: bool = False) -> AnyOf:
        """Sort globs by their shape."""
        shapes: dict[_Shape, list[Glob]] = {shape: [] for shape in _Shape}
        for glob in globs:
            shapes[glob.shape].append(glob)
        return cls(
            bool(shapes[_Shape.ALL]),
            frozenset(glob.text for glob in shapes[_Shape.EXACT]),
            tuple(glob.text.rstrip("*") for glob in shapes[_Shape.HEAD]),
            tuple(glob.text.lstrip("*") for glob in shapes[_Shape.TAIL]),
            tuple((glob.needle, glob.truth) for glob in shapes[_Shape.GENERAL]),
            uris,
        )

    def __call__(self, name: str) -> bool:
        return self.everything or bool(self.among((name,)))

    def __or__(self, other: AnyOf) -> AnyOf:
        return AnyOf(
            self.everything or other.everything,
            self.exact | other.exact,
            self.heads + other.heads,
            self.tails + other.tails,
            self.rest + other.rest,
            self.uris or other.uris,
        )

    def among(self, names: Iterable[str]) -> list[str]:
        """Those names that match, in their order."""
        if self.everything:
            return list(names)
        exact, heads, tails, rest = self.exact, self.heads, self.tails, self.rest
        if self.uris:
            plain = replace(self, uris=False)
            return [name for name in names if plain(normal_form(name))]
        if not rest:
            return [name for name in names if name in exact or name.startswith(heads) or name.endswith(tails)]
        return [
            name
            for name in names
            if name in exact or name.startswith(heads) or name.endswith(tails) or _any_general(name, rest)
        ]

    @property
    def nothing(self) -> bool:
        """Whether no name at all can match."""
        return not (self.everything or self.exact or self.heads or self.tails or self.rest)


def _any_general(name: str, rest: tuple[tuple[str, _Truth], ...]) -> bool:
    for needle, matches in rest:  # noqa: SIM110  (a generator costs more than the loop it runs)
        if needle in name and matches(name):
            return True
    return False


@lru_cache(maxsize=4096)
def _compile(text: str) -> Pattern:
    if len(text) > MAX_PATTERN:
        raise PatternError(text, f"is longer than {MAX_PATTERN} characters")
    server, kind, glob = _parts(text)
    if text and (not server or not glob):
        raise PatternError(text, "has nothing on one side of the colon")
    compiled = Glob.compile(glob)
    if kind is PatternKind.RESOURCE:
        compiled = _plain_glob(normal_glob(glob))
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


@lru_cache(maxsize=4096)
def _compile_glob(text: str) -> Glob:
    if not text:
        raise PatternError(text, "is empty; write * to match everything")
    if len(text) > MAX_PATTERN:
        raise PatternError(text, f"is longer than {MAX_PATTERN} characters")
    if text != text.strip() or not text.isprintable():
        raise PatternError(text, "has spaces around it or characters that cannot be seen")
    return _plain_glob(text)


@lru_cache(maxsize=4096)
def _lookalike_glob(text: str) -> Glob:
    """The glob over skeletons: its letters folded, its wildcards kept."""
    try:
        return _plain_glob(skeleton(text))
    except PatternError:  # folding turned a range of a class the wrong way round
        return _plain_glob(text)


def _plain_glob(text: str) -> Glob:
    if "?" in text or "[" in text:
        pattern = re.compile(_translate(text), re.DOTALL)
        needle = max(re.split(r"\[!?.[^]]*\]|[*?]", text), key=len)
        return Glob(text, _Shape.GENERAL, pattern.fullmatch, needle)
    segments = re.split(r"\*+", text)
    if len(segments) == 1:
        return Glob(text, _Shape.EXACT, lambda name: name == text)
    return _starred(text, segments)


def _starred(text: str, segments: list[str]) -> Glob:
    head, *middle, tail = segments
    if middle or (head and tail):
        needle = max(segments, key=len)
        return Glob(text, _Shape.GENERAL, lambda name: _in_order(name, head, middle, tail), needle)
    if not head and not tail:
        return Glob(text, _Shape.ALL, lambda _: True)
    if not tail:
        return Glob(text, _Shape.HEAD, lambda name: name.startswith(head))
    return Glob(text, _Shape.TAIL, lambda name: name.endswith(tail))


def _in_order(name: str, head: str, middle: list[str], tail: str) -> bool:
    at, end = len(head), len(name) - len(tail)
    if at > end or not name.startswith(head) or not name.endswith(tail):
        return False
    for segment in middle:
        found = name.find(segment, at, end)
        if found < 0:
            return False
        at = found + len(segment)
    return True


def _translate(text: str) -> str:
    # Every star but the last is matched lazily and for good (an atomic group), which is right for globs and keeps
    # hostile names from costing exponential time.
    segments: list[str] = [""]
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "*":
            segments.append("")
        elif char == "?":
            segments[-1] += "."
        elif char == "[":
            piece, at = _character_class(text, at)
            segments[-1] += piece
        else:
            segments[-1] += re.escape(char)
    if len(segments) == 1:
        return segments[0]
    first, *middle, last = segments
    return first + "".join(f"(?>.*?{segment})" for segment in middle if segment) + f".*{last}"


def _character_class(text: str, at: int) -> tuple[str, int]:
    negated = text[at : at + 1] == "!"
    start = at + 1 if negated else at
    end = text.find("]", start + 1)
    if end == -1:
        raise PatternError(text, "opens a [ that is never closed; write [[] for the character itself")
    members = text[start:end]
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


NO_PATTERNS = PatternSet()
ALL_TOOLS = PatternSet.of(["*"])
