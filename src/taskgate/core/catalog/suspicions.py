"""Search tool definitions for signs of tool poisoning: deceptive characters, excessive length, references to other servers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.strict_json import AmbiguousJson, check, is_unambiguous_ascii, is_unambiguous_json
from taskgate.core.text.homoglyphs import find_homoglyphs
from taskgate.core.text.plain_text import STRAY_SELECTOR, is_blank

MAX_DESCRIPTION = 8_192
MAX_NAME = 128
MAX_DEFINITION_TEXT = 131_072
MAX_FLAGS = 50
SLICE = 65_536
SHORTEST_NAME: Final = 3

Names = Mapping[str, Sequence[str]]
_WORD: Final = re.compile(r"\w+")
_PRINTABLE: Final = bytes(code for code in range(0x20, 0x7F) if code != ord("\\"))
"""Printable ASCII without the backslash."""
_FEW_NAMES: Final = 64
"""Up to this many words, searching for each takes less time than dividing the text into words."""


class FlagKind(StrEnum):
    """Why a definition needs review."""

    ZERO_WIDTH = "zero_width"
    BIDI = "bidi"
    TAG = "tag"
    CONTROL = "control"
    TOO_LONG = "too_long"
    OTHER_SERVER = "other_server"
    AMBIGUOUS = "ambiguous"


class Flag(msgspec.Struct, frozen=True):
    """One suspicion: what, and where in the definition."""

    kind: FlagKind
    path: str
    detail: str


def suspicions(tool: Mapping[str, Any], other_servers: Iterable[str] = ()) -> tuple[Flag, ...]:
    """Return everything in a definition that a person should review before trusting it."""
    others = _names_by_first_word(tuple(other_servers))
    whole = _json_if_plain(tool, others)
    if whole is not None and is_unambiguous_ascii(tool, whole):
        return ()
    flags = [] if whole is not None else _flags_of_texts(tool, others)
    try:
        check(dict(tool))
    except AmbiguousJson as error:
        flags.append(Flag(FlagKind.AMBIGUOUS, "", str(error)))
    return tuple(flags[:MAX_FLAGS])


def certainly_has_none(raw: bytes, name: str, other_servers: Iterable[str] = ()) -> bool:
    """Whether the JSON of a definition, as its server sent it, shows that `suspicions` returns nothing. False means that the
    definition must be parsed and passed to `suspicions`. Most definitions need not be.
    """
    others = _names_by_first_word(tuple(other_servers))
    return len(name) <= MAX_NAME and _has_plain_texts(raw, others) and is_unambiguous_json(raw)


def _json_if_plain(tool: Mapping[str, Any], others: Names) -> bytes | None:
    """Return the JSON of a definition if that alone shows that none of its texts needs a flag."""
    name = tool.get("name", "")
    try:
        whole = wire.encode(dict(tool))
    except (UnicodeError, TypeError, ValueError, OverflowError):
        return None
    return whole if type(name) is str and len(name) <= MAX_NAME and _has_plain_texts(whole, others) else None


def _has_plain_texts(whole: bytes, others: Names) -> bool:
    """Whether none of the texts in this JSON needs a flag.

    Without a backslash, it contains its texts literally, each between quotes.
    """
    if len(whole) > MAX_DESCRIPTION or whole.translate(None, _PRINTABLE):
        return False
    return _find_name(whole.decode("ascii"), others) is None


def _flags_of_texts(tool: Mapping[str, Any], others: Names) -> list[Flag]:
    """Check each text of a definition separately."""
    flags: list[Flag] = []
    total = 0
    for path, text in _texts("", tool):
        total += len(text)
        flags.extend(_flags_in(path, text, others))
    if total > MAX_DEFINITION_TEXT:
        flags.append(Flag(FlagKind.TOO_LONG, "", f"{total} characters of text in one definition"))
    return flags


def slices_of(text: str) -> Iterator[str]:
    """Split a long text into pieces that a built-in function processes in about a millisecond."""
    for start in range(0, len(text), SLICE):
        yield text[start : start + SLICE]


def kinds_of(text: str) -> dict[str, None]:
    """Return the distinct characters of a text, in order."""
    kinds: dict[str, None] = {}
    for part in slices_of(text):
        kinds.update(dict.fromkeys(part))
    return kinds


def deceptive_characters(text: str) -> tuple[str, ...]:
    """Return the deceptive characters of a text, each as `U+200B ZERO WIDTH SPACE`, without duplicates: those that are invisible
    or change the direction of text, and letters of other scripts that look like Latin ones.
    """
    if text.isascii():
        return ()
    found = {character: None for character in kinds_of(text) if character_flag(character) is not None}
    if STRAY_SELECTOR.search(text):
        found["\ufe0f"] = None
    found |= dict.fromkeys(text[position] for position in find_homoglyphs(text))
    return tuple(f"U+{ord(character):04X} {unicodedata.name(character, 'unnamed')}" for character in found)


def _flags_in(path: str, text: str, others: Names) -> Iterator[Flag]:
    limit = MAX_NAME if path == "name" else MAX_DESCRIPTION
    if len(text) > limit:
        yield Flag(FlagKind.TOO_LONG, path, f"{len(text)} characters")
    kinds = {kind: character for character in dict.fromkeys(text) if (kind := character_flag(character)) is not None}
    for kind, character in kinds.items():
        yield Flag(kind, path, f"U+{ord(character):04X}")
    found = _find_name(text, others)
    if found is not None:
        yield Flag(FlagKind.OTHER_SERVER, path, f"mentions {found!r}")


def character_flag(character: str) -> FlagKind | None:
    """Return why a character is deceptive, or None."""
    code = ord(character)
    if code < 0x20:
        return None if character in "\t\n\r" else FlagKind.CONTROL
    if code < 0x7F:
        return None
    if 0x7F <= code < 0xA0:
        return FlagKind.CONTROL
    if 0xE0000 <= code <= 0xE007F:
        return FlagKind.TAG
    if code in (0x061C, 0x200E, 0x200F) or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069:
        return FlagKind.BIDI
    # Soft hyphens, joiners, fillers, variation selectors and the like have no visible glyph of their own.
    return FlagKind.ZERO_WIDTH if unicodedata.category(character) == "Cf" or is_blank(character) else None


@lru_cache(maxsize=64)
def _names_by_first_word(names: tuple[str, ...]) -> Names:
    """Names of other servers by their first word, the longest first. Very short names would match accidentally.

    A pattern with an alternative for each of 1,000 names takes 13 ms to compile, for each of the 1,000 servers.
    """
    by_word: dict[str, list[str]] = {}
    for name in sorted({name.casefold() for name in names if len(name) >= SHORTEST_NAME}, key=len, reverse=True):
        word = _WORD.match(name)
        if word is not None:
            by_word.setdefault(word[0], []).append(name)
    return by_word


def _find_name(text: str, names: Names) -> str | None:
    """Return the first of the names that a text contains as whole words, as the text spells it; case does not matter."""
    if not names or (text.isascii() and _has_no_word(text.lower(), names)):
        return None
    for word in _WORD.finditer(text):
        for name in names.get(word[0].casefold(), ()):
            end = word.start() + len(name)
            if text[word.start() : end].casefold() == name and _WORD.match(text, end) is None:
                return text[word.start() : end]
    return None


def _has_no_word(text: str, names: Names) -> bool:
    """Return whether none of the first words of names occurs in an ASCII text: a quick answer for most texts."""
    if len(names) <= _FEW_NAMES:
        return not any(map(text.__contains__, names))
    return names.keys().isdisjoint(_WORD.findall(text))


def _texts(path: str, value: Any) -> Iterator[tuple[str, str]]:
    pending: list[tuple[str, Any]] = [(path, value)]
    while pending:
        place, item = pending.pop()
        if isinstance(item, str):
            yield place, item
        elif isinstance(item, Mapping):
            for key, inner in item.items():
                name = f"{place}.{key}" if place else str(key)
                if not str(key).isascii():
                    yield name, str(key)
                pending.append((name, inner))
        elif isinstance(item, list):
            pending.extend((f"{place}.{index}", inner) for index, inner in enumerate(item))
