"""The filter for rows of history."""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from taskgate.core.history.row import CallOutcome, RowKind

MAX_WORDS: Final = 8
LONGEST_WORD: Final = 40
_WORD: Final = re.compile(r"[^\W_]+")


class HistoryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """None matches any row. Names are exact; every word of `text` must be the beginning of a word in one of the row's names;
    a single letter must be a whole word.

    `since_ms` is inclusive, `until_ms` exclusive; both are compared with the time of the end.
    """

    tenant: str | None = None
    caller: str | None = None
    scope: str | None = None
    server: str | None = None
    tool: str | None = None
    client: str | None = None
    error_type: str | None = None
    kind: RowKind | None = None
    outcomes: frozenset[CallOutcome] | None = None
    text: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def digest(self) -> str:
        """A digest by which a cursor recognizes the filter that it belongs to."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text as they are indexed and searched: letters and digits, in lower case, each at most `LONGEST_WORD` long."""
    found = (word[:LONGEST_WORD] for word in _WORD.findall(text.casefold()))
    return tuple(dict.fromkeys(found))


def search_words(text: str) -> tuple[str, ...]:
    """The words to search for; empty if the text has none, which matches nothing."""
    return words_of(text)[:MAX_WORDS]
