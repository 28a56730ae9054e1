"""URI templates (RFC 6570) of servers: can a URI be an expansion of one, and what is the value of a variable?

A template is a sequence of literals and variables. All ways to divide a URI among them are followed at once, as sets of
offsets in the bits of an integer, so the cost is the length of the template times a few machine words for any number of
variables. A regular expression would try the ways one by one, which takes exponential time. Expansion rules and
percent-encoding are not checked: a match means that the URI may be an expansion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from taskgate.core.resource_uri import MAX_URI

MAX_TEMPLATE: Final = 4096
MAX_EFFORT: Final = 100_000
"""Limit on the template characters that one search compares, weighted by the length of the URI; beyond it no template
matches.
"""
MAX_SUGGESTING: Final = 25_000
"""The same for a list of suggestions, which divides each URI among the variables in both directions."""

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")
_ACROSS_SEGMENTS: Final = frozenset("+#/?&;")
_Owner = TypeVar("_Owner")


class _Variables(msgspec.Struct, frozen=True):
    """One expression in braces. A plain one does not match a slash."""

    names: tuple[str, ...]
    across: bool


class PreparedUri:
    """A URI prepared for comparison with many templates."""

    __slots__ = ("_mirrored", "_places", "end", "not_slash", "uri")

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.end = 1 << len(uri)
        self._places: dict[str, int] = {}
        for at, character in enumerate(uri):
            self._places[character] = self._places.get(character, 0) | 1 << at
        self.not_slash = (self.end - 1) & ~self._places.get("/", 0)
        self._mirrored = -1

    def flooded_down(self, places: int) -> int:
        """These offsets and earlier ones that no slash separates from them."""
        # Bits are mirrored, so that the carry propagates downwards.
        size = self.end.bit_length()
        if self._mirrored < 0:
            self._mirrored = _mirrored(self.not_slash << 1, size)
        free, seen = self._mirrored, _mirrored(places, size)
        return _mirrored((((seen & free) + free) ^ free) | seen, size)

    def flooded_up(self, places: int) -> int:
        """These offsets and later ones that no slash separates from them."""
        # The carry of one addition propagates through a run of ones to the zero after it.
        return (((places & self.not_slash) + self.not_slash) ^ self.not_slash) | places

    def occurrences(self, literal: str) -> int:
        """The offsets at which a literal begins."""
        found = (self.end << 1) - 1
        for at, character in enumerate(literal):
            found &= self._places.get(character, 0) >> at
            if not found:
                break
        return found


class UriTemplate:
    """A parsed template. One that is too long matches only itself."""

    __slots__ = ("_tokens", "head", "tail", "template")

    def __init__(self, template: str) -> None:
        self.template = template
        tokens: list[str | _Variables] = []
        at = 0
        for found in _EXPRESSION.finditer(template) if len(template) <= MAX_TEMPLATE else ():
            tokens.append(template[at : found.start()])
            names = tuple(part.partition(":")[0].rstrip("*") for part in found.group(2).split(","))
            tokens.append(_Variables(names, found.group(1) in _ACROSS_SEGMENTS))
            at = found.end()
        tokens.append(template[at:])
        self._tokens = tuple(tokens)
        self.head, self.tail = str(tokens[0]), str(tokens[-1])

    def effort(self, uri: str) -> int:
        """The cost of a comparison, in characters of a template compared with a short URI."""
        return len(self.template) * (1 + len(uri) // 1024)

    def matches(self, text: PreparedUri) -> bool:
        """Whether the URI may be an expansion of this template."""
        return bool(self._forwards(text)[-1] & text.end)

    def value_of(self, variable: str, text: PreparedUri) -> str | None:
        """Return the value of a variable; None if the URI does not match or there is no such variable."""
        at = next((i for i, t in enumerate(self._tokens) if isinstance(t, _Variables) and variable in t.names), None)
        forwards = self._forwards(text)
        if at is None or not forwards[-1] & text.end:
            return None
        backwards = self._backwards(text)
        # Earlier variables take as much as they can, as readers of a path expect.
        start = (forwards[at] & backwards[at]).bit_length() - 1
        ends = _through(self._tokens[at], text, 1 << start) & backwards[at + 1]
        return text.uri[start : ends.bit_length() - 1]

    def values_in(self, variable: str, uris: Iterable[str]) -> Iterator[str]:
        """Return the values of a variable in many URIs, within a bounded effort."""
        if not any(isinstance(token, _Variables) and variable in token.names for token in self._tokens):
            return
        alone = self._tokens[1] if len(self._tokens) == 3 else None
        minimum, effort = len(self.head) + len(self.tail), 0
        for uri in uris:
            if not uri.startswith(self.head) or not uri.endswith(self.tail) or len(uri) < minimum or len(uri) > MAX_URI:
                continue
            if isinstance(alone, _Variables):
                value = uri[len(self.head) : len(uri) - len(self.tail)]
                if alone.across or "/" not in value:
                    yield value
                continue
            effort += self.effort(uri) + len(uri)
            if effort > MAX_SUGGESTING:
                return
            found = self.value_of(variable, PreparedUri(uri))
            if found is not None:
                yield found

    def _forwards(self, text: PreparedUri) -> list[int]:
        """For each token the offsets at which it may begin, and finally those at which the template may end."""
        places = [1]
        for token in self._tokens:
            places.append(_through(token, text, places[-1]))
        return places

    def _backwards(self, text: PreparedUri) -> list[int]:
        """For each token the offsets from which the rest of the template matches the rest of the URI."""
        places = [text.end]
        for token in reversed(self._tokens):
            after = places[-1]
            if isinstance(token, str):
                places.append((after >> len(token)) & text.occurrences(token))
            else:
                places.append(_before(token, text, after))
        return places[::-1]


def _through(token: str | _Variables, text: PreparedUri, places: int) -> int:
    """The offsets after a token that begins at any of these offsets."""
    if not places:
        return 0
    if isinstance(token, str):
        return (places & text.occurrences(token)) << len(token)
    if token.across:
        return (text.end << 1) - (places & -places)
    return text.flooded_up(places)


def _before(token: _Variables, text: PreparedUri, places: int) -> int:
    top = (1 << places.bit_length()) - 1
    return top if token.across else text.flooded_down(places) & top


def _mirrored(bits: int, size: int) -> int:
    return int(f"{bits:0{size}b}"[::-1][:size], 2)


def first_matching(templates: Iterable[tuple[UriTemplate, _Owner]], uri: str) -> _Owner | None:
    """Return the owner of the first template that the URI may be an expansion of, within a bounded effort."""
    if len(uri) > MAX_URI:
        return None
    text: PreparedUri | None = None
    effort = 0
    for template, owner in templates:
        if not uri.startswith(template.head) or not uri.endswith(template.tail):
            continue
        effort += template.effort(uri)
        if effort > MAX_EFFORT:
            return None
        text = text or PreparedUri(uri)
        if template.matches(text):
            return owner
    return None
