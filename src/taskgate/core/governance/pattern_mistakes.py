"""Patterns that cannot be meant as written: regular expressions, upper case, letters that are not ASCII, lists in one text.

Such a pattern matches no tool, and a rule that denies fails open. `mistake_in` needs nothing but the pattern; `repairs` returns
what was probably meant, also for patterns that are found out only when the tools are known (`unmatched_patterns`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

import msgspec

from taskgate.core.globs import PatternError
from taskgate.core.patterns import Pattern, PatternKind
from taskgate.core.text.lookalikes import skeleton

MAX_ALTERNATIVES: Final = 8
"""Alternatives of a regular expression that are written out as patterns."""

# Nearly all patterns consist of these characters and are not examined further.
_ORDINARY: Final = re.compile(r"[a-z0-9_*:-]*")
_REGEX: Final = re.compile(
    r"[\\^$(){}|+]"  # no character of a name or of a glob
    r"|\A/"
    r"|(?:\A|[_\-\]])\.[*?]"  # elsewhere `.*` may follow a part of a dotted name: `admin.*`
)
# These characters are not allowed in URIs, and others of a regular expression are.
_REGEX_FOR_URIS: Final = re.compile(r"[\^|]")
_MAYBE_REGEX: Final = re.compile(r"\.\*")
"""In `delete.*`, which may also be a glob over dotted names."""
_NEGATED: Final = re.compile(r"\A[!~-]")
_CAMEL_CASE: Final = re.compile(r"[a-z][A-Z]")
_WILDCARD: Final = re.compile(r"[*?\[]")
_CLIENT_NAME: Final = re.compile(r"\Amcp__([A-Za-z0-9.-]+(?:_[A-Za-z0-9.-]+)*)__(.+)\Z")


class PatternMistake(msgspec.Struct, frozen=True):
    """What is wrong with a pattern, and what to write instead; several patterns for alternatives, none if unknown."""

    what: str
    instead: tuple[str, ...] = ()

    @property
    def hint(self) -> str:
        return write_instead(self.instead)


def write_instead(patterns: tuple[str, ...]) -> str:
    """Return what to write instead of a pattern, as the end of a sentence; empty for no pattern."""
    if len(patterns) < 2:
        return "".join(f"write {each}" for each in patterns)
    return f"write {', '.join(patterns[:-1])} and {patterns[-1]} as {len(patterns)} patterns"


def mistake_in(text: str, kind: PatternKind | None = None) -> PatternMistake | None:
    """Return why a pattern cannot be meant as written. An invalid pattern is not examined: it is an error elsewhere.

    `kind` is given for globs that are not over names of servers; it decides which characters may be meant.
    """
    if _ORDINARY.fullmatch(text) and "mcp__" not in text and not text.startswith("-"):
        return None
    try:
        pattern = Pattern.compile(text)
    except PatternError:
        return None
    what = _what_is_wrong(taken_apart(text)[1], kind or pattern.kind)
    if what is None:
        return None
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return PatternMistake(f'"{shown}" {what}', next(filter(_is_sound, repairs(text)), ()))


def taken_apart(text: str) -> tuple[str, str]:
    """Return the part of a pattern with server and kind, including its last colon, and the glob over names."""
    head, colon, rest = text.partition(":")
    if not colon or _NOT_IN_SERVERS.search(head):
        return "", text
    kind, second, name = rest.partition(":")
    if head not in _KINDS and second and kind in _KINDS:
        return f"{head}:{kind}:", name
    return f"{head}:", rest


_KINDS: Final = frozenset(kind.value for kind in PatternKind)
_NOT_IN_SERVERS: Final = re.compile(r"[\\^$(){}|+/,]")


def _is_sound(patterns: tuple[str, ...]) -> bool:
    return all(_what_is_wrong(taken_apart(text)[1], Pattern.compile(text).kind) is None for text in patterns)


def _what_is_wrong(name: str, kind: PatternKind) -> str | None:
    if kind is PatternKind.RESOURCE:
        if _REGEX_FOR_URIS.search(name):
            return "looks like a regular expression; patterns are globs, in which * is any text"
        return None
    foreign = next((character for character in name if not character.isascii()), "")
    if foreign:
        letter = unicodedata.name(foreign, "unnamed")
        return f'contains "{foreign}" ({letter}, U+{ord(foreign):04X}), and names of {kind}s are ASCII'
    if "," in name and "{" not in name:
        return "contains a comma, and is one pattern, not several"
    if is_negated(name):
        return f"begins with {name[0]}, which does not negate a pattern; the first rule that matches decides"
    if _REGEX.search(name):
        return "looks like a regular expression; patterns are globs, in which * is any text and . is a full stop"
    if "%" in name:
        return "contains %, which is no wildcard; * is any text"
    if _CLIENT_NAME.match(name):
        return "is a name that a client shows; patterns match the server's own tool names"
    if _has_unusual_case(name):
        return f"has upper-case letters; patterns are case-sensitive, and most {kind}s have names in lower case"
    return None


def _has_unusual_case(name: str) -> bool:
    """Whether upper case is probably a mistake. `getUser*`, `GetUser` and `API-post-search` are names that servers have."""
    if name.islower() or name == name.lower() or _CAMEL_CASE.search(name):
        return False
    return _WILDCARD.search(name) is not None or "_" in name or name.isupper()


def is_negated(name: str) -> bool:
    """Whether a glob over names begins with a character that is meant to negate it: without that it matches the opposite."""
    return _NEGATED.match(name) is not None


def repairs(text: str) -> Iterator[tuple[str, ...]]:
    """Return what may be meant with a pattern, the most probable first. Each is one pattern, or several that together
    replace it.
    """
    prefix, name = taken_apart(text)
    seen: set[tuple[str, ...]] = {(text,)}
    for names in _repaired_names(name):
        patterns = tuple(dict.fromkeys(_joined(prefix, each) for each in names))
        if patterns not in seen and all(map(_compiles, patterns)):
            seen.add(patterns)
            yield patterns


def _joined(prefix: str, name: str) -> str:
    found = _CLIENT_NAME.match(name)
    return f"{found[1]}:{found[2]}" if found else f"{prefix}{name}"


def _compiles(text: str) -> bool:
    try:
        Pattern.compile(text)
    except PatternError:
        return False
    return True


def _repaired_names(name: str) -> Iterator[tuple[str, ...]]:
    """Return repairs of a glob over names. Each step repairs more than the one before."""
    plain = name if name.isascii() else skeleton(name)
    if "," in plain and "{" not in plain:
        parts = [each.strip() for each in plain.split(",") if each.strip()]
        globs = (_globs_of(each) if _REGEX.search(each) else (each,) for each in parts)
        yield from _in_both_cases(tuple(each for several in globs for each in several))
    if is_negated(plain):
        return
    plain = plain.replace("%", "*")
    yield from _in_both_cases((plain,))
    if _REGEX.search(plain) or _MAYBE_REGEX.search(plain):
        yield from _in_both_cases(_globs_of(plain))
    yield from _in_both_cases((plain.translate(_OTHER_SEPARATOR),))


_OTHER_SEPARATOR: Final = str.maketrans("-_", "_-")


def _in_both_cases(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if names:
        yield names
        yield tuple(each.lower() for each in names)


_DELIMITED: Final = re.compile(r"/(.+)/[a-z]*")
_FLAGS: Final = re.compile(r"\A\(\?[a-zA-Z]+\)")
_GROUP: Final = re.compile(r"\((?:\?:)?([^()]*)\)([*+?]?)")
_BRACES: Final = re.compile(r"\{([^{}]*[^{}\d,][^{}]*)\}")
_STEPS: Final = (
    (re.compile(r"\\[bBAZz]"), ""),
    (re.compile(r"(?:\\[wWdDsS.]|\.|\[[^\]]*\])(?:[*+]|\{[\d,]+\})\??"), "*"),
    (re.compile(r"[\w-]\?|(?<=[\w-])\{[\d,]+\}"), "*"),
    (re.compile(r"\.\?"), "*"),
    (re.compile(r"(?<=[\w-])\+"), "*"),
    (re.compile(r"\\[wWdDsS]"), "?"),
    (re.compile(r"\\(.)"), r"\1"),
    (re.compile(r"\[\^"), "[!"),
    (re.compile(r"\*{2,}"), "*"),
)
"""What is replaced in a regular expression without groups, in this order, so that a glob remains."""


def _globs_of(regex: str) -> tuple[str, ...]:
    """Return globs that match about what a regular expression matches; none if there are no such globs."""
    delimited = _DELIMITED.fullmatch(regex)
    body = _FLAGS.sub("", delimited[1] if delimited else regex.strip("/"))
    is_start, is_end = body.startswith("^"), body.endswith("$")
    body = body.removeprefix("^").removesuffix("$")
    globs = tuple(dict.fromkeys(_glob_of(each) for each in _alternatives(body)))
    if delimited and not is_start and not is_end:
        globs = tuple(each if "*" in each else f"*{each}*" for each in globs)
    if is_start and not is_end:
        globs = tuple(f"{each.rstrip('*')}*" for each in globs)
    if is_end and not is_start:
        globs = tuple(f"*{each.lstrip('*')}" for each in globs)
    return globs if all(each and not _REGEX.search(each) for each in globs) else ()


def _glob_of(regex: str) -> str:
    regex = regex.removeprefix("^").removesuffix("$")
    for part, glob in _STEPS:
        regex = part.sub(glob, regex)
    return regex


def _alternatives(regex: str) -> list[str]:
    """Return the alternatives of a regular expression, without groups; none if they are too many."""
    found = [regex]
    for part, mark in ((_GROUP, "|"), (_BRACES, ",")):
        while (position := next((at for at, each in enumerate(found) if part.search(each)), None)) is not None:
            match = part.search(found[position])
            assert match is not None
            before, after = match.string[: match.start()], match.string[match.end() :]
            choices = [".*"] if match[0].endswith(("*", "+")) else match[1].split(mark)
            choices += [""] if match[0].endswith("?") else []
            found[position : position + 1] = [f"{before}{choice}{after}" for choice in choices]
            if len(found) > MAX_ALTERNATIVES:
                return []
    found = [each for alternative in found for each in alternative.split("|")]
    return found if len(found) <= MAX_ALTERNATIVES else []
