"""Globs over names: `*` is any run of characters, `?` is any character, and `[abc]`, `[a-z]` and `[!abc]` are classes.

Matching takes linear time. Common shapes (exact names, prefixes, suffixes) take one string operation, and `AnyOf`
combines many globs into one test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from taskgate.core.errors import CallerError
from taskgate.core.resource_uri import normal_form
from taskgate.core.text.lookalikes import skeleton

KEPT_PATTERNS = 16_384
"""Compiled patterns that are kept. With more rules than that, a reload compiles all of them again."""
MAX_PATTERN = 512

_Truth = Callable[[str], object]


class PatternError(CallerError):
    """An invalid pattern. The message quotes it and names the problem."""

    def __init__(self, text: str, problem: str) -> None:
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        super().__init__("bad_pattern", f"The pattern {shown!r} {problem}.", data={"pattern": shown})


class GlobShape(StrEnum):
    """Shapes that need one string operation; only character classes and `?` need a regular expression."""

    ALL = "all"
    EXACT = "exact"
    HEAD = "head"
    TAIL = "tail"
    GENERAL = "general"


class Glob(msgspec.Struct, frozen=True, eq=False):
    """One compiled glob over a name. Globs with equal texts are equal."""

    text: str
    shape: GlobShape
    truth: _Truth
    needle: str = ""
    """Its longest literal part: the whole of an exact name, a prefix or a suffix."""

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Glob) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.text)

    @classmethod
    def compile(cls, text: str) -> Glob:
        """Parse a glob. Raises PatternError."""
        return _compile_glob(text)

    @classmethod
    def unchecked(cls, text: str) -> Glob:
        """Compile a glob that needs no check, such as the normal form of a checked one."""
        return _plain_glob(text)

    def matches(self, name: str) -> bool:
        """Whether this glob matches the whole name."""
        return bool(self.truth(name))

    def covers(self, other: Glob) -> bool:
        """Whether this glob certainly matches every name that the other one matches."""
        # What one glob requires literally, a glob that it covers contains literally.
        if self.needle not in other.text:
            return False
        return _covers(_GLOB_TOKENS.findall(self.text), _GLOB_TOKENS.findall(other.text))

    @property
    def literal(self) -> bool:
        """Whether this glob matches exactly one name."""
        return self.shape is GlobShape.EXACT

    @property
    def everything(self) -> bool:
        """Whether this glob matches every name."""
        return self.shape is GlobShape.ALL

    def example(self) -> str | None:
        """Return a short name that this glob matches; None for a character class without an ordinary character."""
        parts = _GLOB_TOKENS.findall(self.text)
        name = "".join(part if len(part) == 1 and part not in "*?" else _example_of(part) for part in parts)
        return name if self.matches(name) else None

    @property
    def lookalike(self) -> Glob:
        """The same glob over skeletons of names: its letters are folded, its wildcards are kept. Often the glob itself."""
        folded = _lookalike_glob(self.text)
        return self if folded is None else folded


_GLOB_TOKENS = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
"""The parts of a glob, each of which matches one character or, for `*`, any run of characters."""


def _example_of(part: str) -> str:
    """Return a character that a wildcard or a character class matches; the part itself if none is found."""
    matches = Glob.unchecked(part).matches
    return next((character for character in ("x", "0", "_", *part[1:]) if matches(character)), part)


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


class AnyOf(msgspec.Struct, frozen=True, eq=False):
    """Many globs as one test, in which all exact names, all prefixes and all suffixes take one operation each."""

    everything: bool
    exact: frozenset[str]
    heads: tuple[str, ...]
    tails: tuple[str, ...]
    # Each with its longest literal part: searching for that first avoids the full test for most names.
    rest: tuple[tuple[str, _Truth], ...]
    uris: bool = False
    """Names are URIs and are compared in their normal form."""

    @classmethod
    def of(cls, globs: Iterable[Glob], *, uris: bool = False) -> AnyOf:
        """Sort globs by shape."""
        shapes: dict[GlobShape, list[Glob]] = {shape: [] for shape in GlobShape}
        for glob in globs:
            shapes[glob.shape].append(glob)
        return cls(
            everything=bool(shapes[GlobShape.ALL]),
            exact=frozenset(glob.text for glob in shapes[GlobShape.EXACT]),
            heads=tuple(glob.text.rstrip("*") for glob in shapes[GlobShape.HEAD]),
            tails=tuple(glob.text.lstrip("*") for glob in shapes[GlobShape.TAIL]),
            rest=tuple((glob.needle, glob.truth) for glob in shapes[GlobShape.GENERAL]),
            uris=uris,
        )

    def __call__(self, name: str) -> bool:
        return self.everything or bool(self.among((name,)))

    def __or__(self, other: AnyOf) -> AnyOf:
        return AnyOf(
            everything=self.everything or other.everything,
            exact=self.exact | other.exact,
            heads=self.heads + other.heads,
            tails=self.tails + other.tails,
            rest=self.rest + other.rest,
            uris=self.uris or other.uris,
        )

    def among(self, names: Iterable[str]) -> list[str]:
        """Return the names that match, in order."""
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
        """Whether no name can match."""
        return not (self.everything or self.exact or self.heads or self.tails or self.rest)


def _any_general(name: str, rest: tuple[tuple[str, _Truth], ...]) -> bool:
    for needle, matches in rest:  # noqa: SIM110  (a generator costs more than the loop it runs)
        if needle in name and matches(name):
            return True
    return False


@lru_cache(maxsize=KEPT_PATTERNS)
def _compile_glob(text: str) -> Glob:
    if not text:
        raise PatternError(text, "is empty; write * to match everything")
    if len(text) > MAX_PATTERN:
        raise PatternError(text, f"is longer than {MAX_PATTERN} characters")
    if text != text.strip() or not text.isprintable():
        raise PatternError(text, "has surrounding spaces or invisible characters")
    return _plain_glob(text)


@lru_cache(maxsize=KEPT_PATTERNS)
def _lookalike_glob(text: str) -> Glob | None:
    """Return the glob over skeletons, or None if folding changes nothing, as in most patterns."""
    folded = skeleton(text)
    if folded == text:
        return None
    try:
        return _plain_glob(folded)
    except PatternError:  # folding reversed a range of a character class
        return None


def _plain_glob(text: str) -> Glob:
    if "?" in text or "[" in text:
        if "[" in text:
            _check_classes(text)
        needle = max(_BETWEEN_WILDCARDS.split(text), key=len)
        return Glob(text, GlobShape.GENERAL, _compiled_at_first_use(text), needle)
    if "*" not in text:
        return Glob(text, GlobShape.EXACT, text.__eq__, text)
    return _starred(text, text.split("*"))


_BETWEEN_WILDCARDS = re.compile(r"\[!?.[^]]*\]|[*?]")


def _compiled_at_first_use(text: str) -> _Truth:
    """Compiling takes a fifth of a millisecond, and few of many globs meet a name with their literal part."""
    fullmatch: _Truth | None = None

    def truth(name: str) -> object:
        nonlocal fullmatch
        if fullmatch is None:
            fullmatch = re.compile(_translate(text), re.DOTALL).fullmatch
        return fullmatch(name)

    return truth


def _check_classes(text: str) -> None:
    """Raise PatternError for a character class that is not closed or has a range the wrong way round."""
    at = text.find("[")
    while at >= 0:
        at = text.find("[", _character_class(text, at + 1)[1])


def _starred(text: str, segments: list[str]) -> Glob:
    head, *inner, tail = segments
    middle = [segment for segment in inner if segment]
    if middle or (head and tail):
        needle = max(segments, key=len)
        return Glob(text, GlobShape.GENERAL, lambda name: _in_order(name, head, middle, tail), needle)
    if not head and not tail:
        return Glob(text, GlobShape.ALL, lambda _: True)
    if not tail:
        return Glob(text, GlobShape.HEAD, lambda name: name.startswith(head), head)
    return Glob(text, GlobShape.TAIL, lambda name: name.endswith(tail), tail)


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
    # Every star but the last is matched lazily in an atomic group, which is correct for globs and prevents exponential
    # time.
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
