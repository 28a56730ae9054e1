"""Order of suggestions: values that begin with the typed text, then values that contain it, then near matches.

Within each kind of match, values used with the same other arguments come first, then values used often and recently,
then the rest in order. The candidates of one argument are indexed once and queried many times. At most 100 values are
returned, as MCP requires.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate

import msgspec

from taskgate.core.completion.memory import Usage

MAX_VALUES = 100
MAX_TYPED = 256

_FEW = 10
_HALF_LIFE_S = 7 * 86_400.0
_LAST = chr(0x10FFFF)


class Match(IntEnum):
    """How well a candidate matches the typed text; smaller is better."""

    EXACT = 0
    PREFIX = 1
    INSIDE = 2
    NEARLY = 3


class Completion(msgspec.Struct, frozen=True):
    """Suggestions, best first; their total number; whether some are omitted."""

    values: tuple[str, ...]
    total: int
    has_more: bool

    def as_result(self) -> dict[str, object]:
        """The `completion` object of MCP."""
        return {"values": list(self.values), "total": self.total, "hasMore": self.has_more}


class CandidateIndex(msgspec.Struct, frozen=True):
    """The candidates of one argument, sorted case-insensitively."""

    values: tuple[str, ...]
    folded: tuple[str, ...]
    # All candidates in one text, and their offsets: searching inside a hundred thousand values is then one search.
    text: str
    starts: tuple[int, ...]

    @classmethod
    def build(cls, values: Iterable[str]) -> CandidateIndex:
        """Index candidates, without duplicates."""
        pairs = sorted((value.casefold(), value) for value in dict.fromkeys(values) if value)
        folded = tuple(fold for fold, _ in pairs)
        starts = tuple(accumulate((len(fold) + 1 for fold in folded), initial=0))
        return cls(tuple(value for _, value in pairs), folded, "\n".join(folded), starts)

    def matches(self, typed: str, enough: int = MAX_VALUES) -> dict[str, Match]:
        """Return matching candidates, best kinds first; weaker kinds are tried until there are enough."""
        prefix = typed[:MAX_TYPED].casefold()
        low, high = bisect_left(self.folded, prefix), bisect_left(self.folded, prefix + _LAST)
        found = dict.fromkeys(self.values[low:high], Match.PREFIX)
        if typed in found:
            found[typed] = Match.EXACT
        if prefix and len(found) < enough:
            for at in self._inside(prefix, enough):
                found.setdefault(self.values[at], Match.INSIDE)
        if len(prefix) >= 3 and len(found) < _FEW:
            for at in self._nearly(prefix, enough):
                found.setdefault(self.values[at], Match.NEARLY)
        return found

    def _inside(self, prefix: str, limit: int) -> Iterator[int]:
        place = self.text.find(prefix) if "\n" not in prefix else -1
        for _ in range(limit * 10):
            if place < 0:
                return
            at = bisect_right(self.starts, place) - 1
            yield at
            place = self.text.find(prefix, self.starts[at + 1])

    def _nearly(self, prefix: str, limit: int) -> list[int]:
        # Typed text is a prefix of a value, so it is compared with prefixes; and a typing error is rarely in the first
        # letter, unless the first two are swapped. Imported on first use, to keep an idle gateway small.
        from rapidfuzz import process
        from rapidfuzz.distance import OSA

        edits = 1 if len(prefix) < 6 else 2
        near: list[tuple[float, int]] = []
        for letter in dict.fromkeys(prefix[:2]):
            low, high = bisect_left(self.folded, letter), bisect_left(self.folded, letter + _LAST)
            beginnings = [fold[: len(prefix)] for fold in self.folded[low:high]]
            hits = process.extract(prefix, beginnings, scorer=OSA.distance, score_cutoff=edits, limit=limit)
            near += [(distance, low + at) for _, distance, at in hits]
        return [at for _, at in sorted(near)]


def complete(
    index: CandidateIndex,
    typed: str,
    used: Mapping[str, Usage] | None = None,
    *,
    now: float = 0.0,
    given: Mapping[str, str] | None = None,
    limit: int = MAX_VALUES,
) -> Completion:
    """Return suggestions for the typed text. `used` are the caller's own values, `given` the arguments already filled
    in.
    """
    used = used or {}
    own, offered = CandidateIndex.build(used).matches(typed), index.matches(typed)
    beside = frozenset((given or {}).items())
    scored = sorted((match, -_usage_score(used[value], beside, now), value) for value, match in own.items())
    ranked = _merged_by_match([(match, value) for match, _, value in scored], offered, limit)
    total = len(offered) + sum(value not in offered for value in own)
    return Completion(tuple(ranked), total, total > len(ranked))


def merge_with_upstream(
    ours: Completion, upstream: Sequence[str], total: int | None = None, has_more: bool = False, limit: int = MAX_VALUES
) -> Completion:
    """Put the server's suggestions first and add ours, without duplicates."""
    theirs = tuple(dict.fromkeys(upstream))
    values = tuple(dict.fromkeys((*theirs, *ours.values)))[:limit]
    both = len(set(theirs) & set(ours.values))
    known = max(total or 0, len(theirs)) + ours.total - both
    return Completion(values, known, has_more or known > len(values))


def _merged_by_match(own: list[tuple[Match, str]], offered: Mapping[str, Match], limit: int) -> list[str]:
    """Used values before unused ones of the same kind of match. `offered` is ordered by kind, except for the exact
    match.
    """
    mine = {value for _, value in own}
    ranked: list[str] = []
    for kind in Match:
        ranked += [value for match, value in own if match is kind]
        if len(ranked) >= limit:
            break
        ranked += _first(offered, kind, mine, limit - len(ranked))
    return ranked[:limit]


def _first(offered: Mapping[str, Match], kind: Match, without: set[str], count: int) -> list[str]:
    found: list[str] = []
    for value, match in offered.items():
        if match is kind and value not in without:
            found.append(value)
            if len(found) >= count:
                break
    return found


def _usage_score(usage: Usage, beside: frozenset[tuple[str, str]], now: float) -> float:
    """Use with the same other arguments weighs most; frequency counts logarithmically and decays within weeks."""
    context = len(usage.beside & beside)
    age = max(0.0, now - usage.last)
    return 3.0 * context + math.log1p(usage.times) * math.pow(0.5, age / _HALF_LIFE_S)
