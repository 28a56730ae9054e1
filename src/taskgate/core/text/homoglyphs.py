"""Homoglyphs: letters of other scripts in the place of Latin ones, as in `/home/\u0430dmin` with a Cyrillic letter.

A text in another script is not marked. A letter that looks like a Latin one is marked in a word that has Latin letters too. A
word of such letters only (in UTS 39 a whole-script confusable) is marked if Latin words stand beside it without a space, as in a
path or an address, or if its line has no other letters of these scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from taskgate.core.text.latin_lookalikes import LOOKALIKES
from taskgate.core.text.lookalikes import DRAWN_LIKE

_WRITTEN: Final = frozenset("ıþƒɣʋɩøłđħ")
"""Latin letters of languages in use."""
_SAME: Final = "".join(sorted(set("".join(LOOKALIKES.values())) - _WRITTEN))
"""Letters that cannot be distinguished from a Latin one."""
_SIMILAR: Final = frozenset(_SAME).union(letter for letter in map(chr, DRAWN_LIKE) if "\u0400" <= letter < "\u0530")
"""The same, and Cyrillic letters that resemble a Latin one."""
_GREEK: Final = frozenset(map(chr, range(0x370, 0x400)))
_RANGES: Final = (
    "\u0250-\u02af\u0370-\u058f\u10a0-\u10ff\u13a0-\u167f\u1d00-\u1d7f\u2c80-\u2dff\ua4d0-\ua4ff\ua640-\ua69f"
)
_ANY: Final = re.compile(f"[{''.join(sorted(_SIMILAR))}]")
_OTHER: Final = re.compile(f"(?![{_SAME}])[{_RANGES}]")
_LINE: Final = re.compile(r"[^\n]+")
_TOKEN: Final = re.compile(r"\S+")
# Escapes of JSON are no letters.
_WORD: Final = re.compile(r'\\u[0-9a-fA-F]{4}|\\[nrtbf"/\\]|([^\W_]+)')
_LATIN: Final = re.compile("[A-Za-z]")


def escape_homoglyphs(text: str) -> str:
    """Return the text with each homoglyph as `\\uXXXX`."""
    parts: list[str] = []
    end = 0
    for position in find_homoglyphs(text):
        parts += text[end:position], f"\\u{ord(text[position]):04x}"
        end = position + 1
    return "".join((*parts, text[end:])) if parts else text


def find_homoglyphs(text: str) -> Iterator[int]:
    """Find the positions of homoglyphs, in order. No single step takes long, however long the text."""
    if text.isascii() or _ANY.search(text) is None:
        return
    for line in _LINE.finditer(text):
        if _ANY.search(text, *line.span()):
            is_latin = _OTHER.search(text, *line.span()) is None
            for token in _TOKEN.finditer(text, *line.span()):
                if _ANY.search(text, *token.span()) and (is_latin or _LATIN.search(text, *token.span())):
                    yield from _in_token(text, *token.span(), is_latin=is_latin)


def _in_token(text: str, start: int, end: int, *, is_latin: bool) -> Iterator[int]:
    words = [word for word in _WORD.finditer(text, start, end) if word[1]]
    beside_latin = any(_LATIN.search(word[1]) for word in words)
    for word in words:
        if word[1].isascii():
            continue
        if _LATIN.search(word[1]):
            yield from (word.start() + at for at, letter in enumerate(word[1]) if letter in _SIMILAR)
        elif _looks_latin(word[1]) and (_may_be_alone(word[1]) if beside_latin else is_latin and len(word[1]) > 1):
            yield from (word.start() + at for at, letter in enumerate(word[1]) if letter in _SAME)


def _may_be_alone(word: str) -> bool:
    """Single Greek letters are signs, as in \u03b1-Fe."""
    return len(word) > 1 or word not in _GREEK


def _looks_latin(word: str) -> bool:
    return all(letter in _SAME for letter in word if letter.isalpha())
