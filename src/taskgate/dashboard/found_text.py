"""Search in arguments and results as displayed: each match is marked. The script of the console does the same while typing."""

from __future__ import annotations

from typing import Final

import msgspec
from markupsafe import Markup, escape

from taskgate.core.governance.card import excerpt

LONGEST_SEARCH: Final = 200
"""Characters of the text that is searched for."""
MAX_MARKS: Final = 1_000
"""Matches that are marked in one text; further ones are counted only."""
MIN_SEARCHED: Final = 600
"""Characters from which on a page offers the search: about what a phone shows at once."""


class FoundText(msgspec.Struct, frozen=True):
    """Text for display. `left_out` is the number of omitted characters, `matches` that of matches in the rest."""

    text: str
    left_out: int
    matches: int


def found_text(text: str, limit: int, search: str) -> FoundText:
    """At most `limit` characters, with each match of `search` marked; the first has the id `found`, which the address leads to."""
    shown = excerpt(text, limit)
    places = _places(shown.text, search) if search else []
    if not places:
        return FoundText(shown.text, shown.left_out, 0)
    pieces: list[Markup] = []
    done = 0
    for place in places[:MAX_MARKS]:
        mark = Markup("<mark>{}</mark>") if pieces else Markup('<mark id="found">{}</mark>')
        pieces += [escape(shown.text[done:place]), mark.format(shown.text[place : place + len(search)])]
        done = place + len(search)
    return FoundText(Markup("").join([*pieces, escape(shown.text[done:])]), shown.left_out, len(places))


def _places(text: str, search: str) -> list[int]:
    """Where matches begin, without regard to case. `str.find` takes linear time; a regular expression would not."""
    lower, sought = text.lower(), search.lower()
    if len(lower) != len(text) or len(sought) != len(search):
        lower, sought = text, search  # a few letters have more characters in lower case, which would move every place
    places, place = [], lower.find(sought)
    while place >= 0:
        places.append(place)
        place = lower.find(sought, place + len(sought))
    return places
