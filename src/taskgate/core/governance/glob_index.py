"""Find the first of many ordered patterns that matches a name, without trying all of them.

Exact names, prefixes and suffixes are looked up in dictionaries by length. A pattern with an inner wildcard is tried
only for names with its literal prefix or, if it begins with a wildcard, for names that contain its longest literal
part; those of many patterns are looked up by length as well. The result always equals that of trying every pattern in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from taskgate.core.globs import Glob, GlobShape
from taskgate.core.patterns import Pattern, PatternKind

NO_MATCH: Final = 1 << 30
# Servers come from the registry, so no gateway reaches this; it only bounds the cache.
MAX_SERVERS: Final = 10_000

_Truth = Callable[[str], bool]
_LITERAL_HEAD: Final = re.compile(r"[^*?\[]*")


class GlobIndex:
    """Numbered globs; smaller numbers have precedence."""

    __slots__ = (
        "_all",
        "_exact",
        "_head_lengths",
        "_heads",
        "_inside",
        "_needle_lengths",
        "_needles",
        "_tail_lengths",
        "_tails",
    )

    def __init__(self, globs: Iterable[tuple[int, Glob]]) -> None:
        self._all = NO_MATCH
        self._exact: dict[str, int] = {}
        self._heads: dict[str, list[tuple[int, _Truth | None]]] = {}
        self._tails: dict[str, int] = {}
        self._inside: list[tuple[int, str, _Truth]] = []
        for number, glob in globs:
            # By shape, and without the properties of a glob: there may be thousands.
            match glob.shape:
                case GlobShape.EXACT:
                    self._exact.setdefault(glob.needle, number)
                case GlobShape.HEAD:
                    self._heads.setdefault(glob.needle, []).append((number, None))
                case GlobShape.TAIL:
                    self._tails.setdefault(glob.needle, number)
                case GlobShape.ALL:
                    self._all = min(self._all, number)
                case _:
                    self._add_general(number, glob)
        self._head_lengths = sorted({len(head) for head in self._heads})
        self._tail_lengths = sorted({len(tail) for tail in self._tails})
        self._needles: dict[str, list[tuple[int, _Truth]]] = {}
        for number, needle, matches in self._inside:
            self._needles.setdefault(needle, []).append((number, matches))
        self._needle_lengths = sorted({len(needle) for needle in self._needles})

    def _add_general(self, number: int, glob: Glob) -> None:
        head = glob.text[: _LITERAL_HEAD.match(glob.text).end()]  # type: ignore[union-attr]  # it matches every text
        if head:
            self._heads.setdefault(head, []).append((number, glob.matches))
        else:
            self._inside.append((number, glob.needle, glob.matches))

    def first(self, name: str, before: int = NO_MATCH) -> int:
        """Return the smallest number whose glob matches the name, if it is smaller than `before`; else `before`."""
        best = min(before, self._all, self._exact.get(name, NO_MATCH))
        size = len(name)
        for length in self._tail_lengths:
            if length > size:
                break
            best = min(best, self._tails.get(name[size - length :], NO_MATCH))
        for length in self._head_lengths:
            if length > size:
                break
            best = self._first_with_head(name, name[:length], best)
        if len(self._inside) > size * len(self._needle_lengths):
            return self._first_with_part(name, best)
        for number, needle, matches in self._inside:
            if number >= best:
                break
            if needle in name and matches(name):
                return number
        return best

    def _first_with_part(self, name: str, best: int) -> int:
        """Look up every part of the name instead of trying every pattern."""
        for length in self._needle_lengths:
            for begin in range(len(name) - length + 1):
                for number, matches in self._needles.get(name[begin : begin + length], ()):
                    if number >= best:
                        break
                    if matches(name):
                        best = number
                        break
        return best

    def _first_with_head(self, name: str, head: str, best: int) -> int:
        for number, matches in self._heads.get(head, ()):
            if number >= best:
                break
            if matches is None or matches(name):
                return number
        return best


class RuleIndex:
    """Ordered patterns, each for all servers or for some."""

    __slots__ = ("_everywhere", "_glob_of", "_limited", "_named", "_of_server")

    def __init__(self, rules: Iterable[tuple[int, Pattern, str | None]], glob_of: Callable[[Pattern], Glob]) -> None:
        everywhere: dict[PatternKind, list[tuple[int, Glob]]] = {}
        self._named: dict[str, list[tuple[int, Pattern]]] = {}
        """Patterns for exactly one server."""
        self._limited: list[tuple[int, Pattern]] = []
        self._glob_of = glob_of
        for number, pattern, server in rules:
            if server is None and pattern.server.everything:
                everywhere.setdefault(pattern.kind, []).append((number, glob_of(pattern)))
            elif server is None and not pattern.server.literal:
                self._limited.append((number, pattern))
            elif server is None or pattern.server.matches(server):
                self._named.setdefault(server or pattern.server.text, []).append((number, pattern))
        self._everywhere = {kind: GlobIndex(globs) for kind, globs in everywhere.items()}
        self._of_server: dict[tuple[PatternKind, str], GlobIndex | None] = {}

    def first(self, kind: PatternKind, server: str, name: str) -> int:
        """Return the number of the first pattern that matches the name of that server, or NO_MATCH."""
        general = self._everywhere.get(kind)
        best = general.first(name) if general is not None else NO_MATCH
        if not self._named and not self._limited:
            return best
        key = (kind, server)
        if key not in self._of_server:
            if len(self._of_server) >= MAX_SERVERS:
                self._of_server.clear()
            self._of_server[key] = self._build(kind, server)
        special = self._of_server[key]
        return best if special is None else special.first(name, best)

    def _build(self, kind: PatternKind, server: str) -> GlobIndex | None:
        mine = [*self._named.get(server, ()), *(rule for rule in self._limited if rule[1].server.matches(server))]
        globs = sorted((number, pattern) for number, pattern in mine if pattern.kind is kind)
        return GlobIndex((number, self._glob_of(pattern)) for number, pattern in globs) if globs else None


class EveryMatch:
    """Numbered patterns, each for all servers or for some, all of whose matches count: those of rules with conditions."""

    __slots__ = ("_exact", "_general", "_head_lengths", "_heads", "_tail_lengths", "_tails")

    def __init__(self, rules: Iterable[tuple[int, Pattern, str | None]], glob_of: Callable[[Pattern], Glob]) -> None:
        self._exact: dict[tuple[PatternKind, str], list[_Limited]] = {}
        self._heads: dict[tuple[PatternKind, str], list[_Limited]] = {}
        self._tails: dict[tuple[PatternKind, str], list[_Limited]] = {}
        self._general: dict[PatternKind, list[tuple[str, _Truth, _Limited]]] = {}
        by_shape = {GlobShape.EXACT: self._exact, GlobShape.HEAD: self._heads, GlobShape.TAIL: self._tails}
        for number, pattern, server in rules:
            glob, limited = glob_of(pattern), _Limited(number, pattern, server)
            found = by_shape.get(glob.shape)
            if found is not None:
                found.setdefault((pattern.kind, glob.needle), []).append(limited)
            else:
                self._general.setdefault(pattern.kind, []).append((glob.needle, glob.matches, limited))
        self._head_lengths = sorted({len(head) for _, head in self._heads})
        self._tail_lengths = sorted({len(tail) for _, tail in self._tails})

    def before(self, last: int, kind: PatternKind, server: str, name: str) -> list[int]:
        """Return the numbers below `last` of all patterns that match the name of that server, in order."""
        found = [*self._exact.get((kind, name), ())]
        size = len(name)
        for length in self._head_lengths:
            found += self._heads.get((kind, name[:length]), ()) if length <= size else ()
        for length in self._tail_lengths:
            found += self._tails.get((kind, name[size - length :]), ()) if length <= size else ()
        for needle, matches, limited in self._general.get(kind, ()):
            if needle in name and matches(name):
                found.append(limited)
        return sorted(each.number for each in found if each.number < last and each.is_for(server))


class _Limited(NamedTuple):
    number: int
    pattern: Pattern
    server: str | None

    def is_for(self, server: str) -> bool:
        return self.server in (None, server) and self.pattern.server.matches(server)
