"""An upper bound for the cost of applying a JSON schema to a value, computed before it is applied.

A few hundred bytes can cost hours: `allOf` with two references to the next definition doubles with each definition, a
schema that applies itself twice to a property doubles with each level of the value, and the cost of a pattern or of an
`enum` of objects multiplies with every character or element. The maximum that can apply to one place is counted level
by level, weighted, and multiplied by the number of places of the value. One unit is about ten nanoseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

MAX_TOGETHER: Final = 10_000
MAX_COUNTING: Final = 30_000
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")

# Keywords that apply to the same value again.
_SAME_VALUE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_VALUE: Final = ("not", "if", "then", "else")
# Keywords that apply to any member, or any element.
_ANY_MEMBER: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_ANY_ELEMENT: Final = ("items", "contains", "additionalItems", "unevaluatedItems")
_ANY: Final = ""
_AGAIN: Final = frozenset({*_SAME_VALUE_LISTS, *_SAME_VALUE, "dependentSchemas", *REFERENCES})
_INSIDE: Final = frozenset({*_ANY_MEMBER, *_ANY_ELEMENT, "properties", "patternProperties", "prefixItems"})

# The measured cost of one application with the validator, rounded up.
_KEYWORD_COST, _REQUIRED, _PROPERTY, _PATTERN_KEY, _LISTED_VALUE, _UNIQUE = 4, 7, 2, 3, 30, 40
_LINEAR_CHARACTER, _COUNTED_CHARACTER, _BACKTRACKING_CHARACTER = 2, 220, 400
_COUNTED: Final = re.compile(r"\{\d{2,}|\{\d*,\d{2,}")
# Look-around, back-references, atomic and possessive forms: what the linear engine does not support.
_BACKTRACKING: Final = re.compile(r"\(\?(?!:)|\\[1-9kGKZ]|[*+?}]\+")
_UNBOUNDED: Final = re.compile(r"[*+|]|,\}")


class TooMuchWork(Exception):
    """Applying the schema would take too long, or never end."""


class Shape(msgspec.Struct, frozen=True):
    """The size of a value: at most this many objects, arrays, values of any kind, and characters."""

    objects: int
    arrays: int
    values: int
    characters: int

    @classmethod
    def of_text(cls, text: bytes) -> Shape:
        """Return a bound from the JSON text alone; brackets and commas inside strings only increase it."""
        objects, arrays = text.count(b"{"), text.count(b"[")
        return cls(objects, arrays, objects + arrays + text.count(b",") + 1, len(text))


class Weight(msgspec.Struct, frozen=True):
    """The cost of one place: per object, per array, per value of any kind, and per character."""

    objects: int = 0
    arrays: int = 0
    values: int = 0
    characters: int = 0

    def __add__(self, other: Weight) -> Weight:
        return Weight(
            self.objects + other.objects,
            self.arrays + other.arrays,
            self.values + other.values,
            self.characters + other.characters,
        )

    def __mul__(self, times: int) -> Weight:
        return Weight(self.objects * times, self.arrays * times, self.values * times, self.characters * times)

    def __or__(self, other: Weight) -> Weight:
        """The maximum of both in each component."""
        return Weight(
            max(self.objects, other.objects),
            max(self.arrays, other.arrays),
            max(self.values, other.values),
            max(self.characters, other.characters),
        )

    def of(self, shape: Shape) -> int:
        """The maximum cost of a value of this shape if no place is heavier than this."""
        return (
            self.objects * shape.objects
            + self.arrays * shape.arrays
            + self.values * shape.values
            + self.characters * shape.characters
        )


class SchemaWork:
    """Counts for one schema. Results are cached."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._anchors = {
            p[word]: p for p in parts_of(root) for word in ("$anchor", "$dynamicAnchor") if _named(p, word)
        }
        self._together: dict[int, list[Mapping[str, Any]]] = {}
        self._open: set[int] = set()
        self._weights: dict[int, Weight] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._counted = 0
        self._levels: list[Weight] = []
        self._frontier = [self._applied_together(root)]
        self._too_much: TooMuchWork | None = None

    def heaviest(self, depth: int) -> Weight:
        """Return the weight of the heaviest place within this many levels of a value. Raises TooMuchWork."""
        while len(self._levels) < depth and self._frontier and self._too_much is None:
            self._count_level()
        if len(self._levels) < depth and self._too_much is not None:
            raise self._too_much.with_traceback(None)
        return self._levels[min(depth, len(self._levels)) - 1]

    def _count_level(self) -> None:
        if self._levels:
            try:
                self._frontier = self._groups_below()
            except (TooMuchWork, RecursionError) as problem:
                self._too_much = problem if isinstance(problem, TooMuchWork) else TooMuchWork(_CHAIN)
                return
        heaviest = self._levels[-1] if self._levels else Weight()
        for group in self._frontier:
            heaviest |= self._weight_together(group)
        self._levels.append(heaviest)

    def _groups_below(self) -> list[list[Mapping[str, Any]]]:
        """The parts that apply together at each place one level down, unless the same group was counted before."""
        found: list[list[Mapping[str, Any]]] = []
        for group in self._frontier:
            if all(map(_INSIDE.isdisjoint, group)):
                continue
            for parts in _by_place(group):
                together: list[Mapping[str, Any]] = []
                for part in parts:
                    together += self._applied_together(part) if isinstance(part, dict) else ()
                    if len(together) > MAX_TOGETHER:
                        raise TooMuchWork(_TOO_LONG)
                self._counted += len(parts) + len(together)
                if self._counted > MAX_COUNTING:
                    raise TooMuchWork(_TOO_LONG)
                key = tuple(sorted(map(id, together)))
                if together and key not in self._seen:
                    self._seen.add(key)
                    found.append(together)
        return found

    def _weight_together(self, group: list[Mapping[str, Any]]) -> Weight:
        if len(group) == 1:
            return self._weight(group[0])
        parts = {id(part): part for part in group}
        times = Counter(map(id, group))
        weight = Weight()
        for key, part in parts.items():
            weight += self._weight(part) * times[key]
        return weight

    def _weight(self, part: Mapping[str, Any]) -> Weight:
        known = self._weights.get(id(part))
        if known is None:
            known = self._weights[id(part)] = _weight_of(part)
        return known

    def _applied_together(self, part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return this part and all parts that apply to the same value, each with the number of times it applies."""
        if _AGAIN.isdisjoint(part):
            return [part]
        key = id(part)
        if key in self._together:
            return self._together[key]
        if key in self._open:
            raise TooMuchWork("it applies itself to the same value without end")
        self._open.add(key)
        together = [part]
        for inner in self._same_value(part):
            together += self._applied_together(inner) if isinstance(inner, dict) else []
            if len(together) > MAX_TOGETHER:
                raise TooMuchWork(_TOO_LONG)
        self._open.discard(key)
        self._together[key] = together
        return together

    def _same_value(self, part: Mapping[str, Any]) -> Iterator[Any]:
        for keyword in _SAME_VALUE_LISTS:
            listed = part.get(keyword)
            yield from listed if isinstance(listed, list) else ()
        yield from (part[keyword] for keyword in _SAME_VALUE if keyword in part)
        yield from _members(part, "dependentSchemas").values()
        for keyword in REFERENCES:
            target = part.get(keyword)
            if isinstance(target, str):
                yield self.referred(target)

    def referred(self, target: str) -> Any:
        """Return the target of a reference into this schema, or None."""
        if not target.startswith("#/"):
            return self._root if target == "#" else self._anchors.get(target[1:])
        found: Any = self._root
        for step in target[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(name)
            else:
                found = (
                    found[int(name)] if isinstance(found, list) and name.isdigit() and int(name) < len(found) else None
                )
        return found


_TOO_LONG: Final = "it would take too long to apply"
_CHAIN: Final = "its references form too long a chain"


def parts_of(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Return every object in the schema, whether it is a schema or not. Counting too many only makes the bound larger."""
    waiting = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
        waiting += inner_values(item)


def inner_values(item: Any) -> Iterator[Any]:
    """The values that a JSON value contains."""
    if isinstance(item, dict):
        yield from item.values()
    elif isinstance(item, list):
        yield from item


def _weight_of(part: Mapping[str, Any]) -> Weight:
    listed = part.get("enum")
    costly = sum(not isinstance(value, str) for value in listed) if isinstance(listed, list) else 0
    costly += isinstance(part.get("const"), dict | list)
    values = _KEYWORD_COST + _LISTED_VALUE * costly + (_UNIQUE if "uniqueItems" in part else 0)
    required = part.get("required")
    keys = _members(part, "patternProperties")
    objects = _PROPERTY * len(_members(part, "properties"))
    objects += _REQUIRED * (len(required) if isinstance(required, list) else 0)
    needs = sum(len(names) for names in _members(part, "dependentRequired").values() if isinstance(names, list))
    patterns = [*keys, *([part["pattern"]] if isinstance(part.get("pattern"), str) else [])]
    return Weight(
        objects + _REQUIRED * needs,
        len(part["prefixItems"]) if isinstance(part.get("prefixItems"), list) else 0,
        values + _PATTERN_KEY * len(keys),
        sum(_per_character(pattern) for pattern in patterns),
    )


def _per_character(pattern: str) -> int:
    if _BACKTRACKING.search(pattern):
        return _BACKTRACKING_CHARACTER
    chained = pattern.startswith("^") and not _UNBOUNDED.search(pattern)
    return _COUNTED_CHARACTER if _COUNTED.search(pattern) and not chained else _LINEAR_CHARACTER


def _named(part: Mapping[str, Any], word: str) -> bool:
    return isinstance(part.get(word), str)


def _members(part: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    found = part.get(keyword)
    return found if isinstance(found, dict) else {}


def _by_place(together: list[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """The parts that apply together at each place one level down. Keywords for any member apply to every named one."""
    named: dict[str, list[Any]] = {_ANY: []}
    element: list[Any] = []
    anywhere: list[Any] = []
    for part in together:
        for name, inner in _members(part, "properties").items():
            named.setdefault(name, []).append(inner)
        anywhere += [*_members(part, "patternProperties").values(), *(part[k] for k in _ANY_MEMBER if k in part)]
        for keyword in _ANY_ELEMENT:
            inner = part.get(keyword)
            element += inner if isinstance(inner, list) else [inner]
        prefix = part.get("prefixItems")
        element += prefix if isinstance(prefix, list) else []
    yield element
    for parts in named.values():
        yield parts + anywhere
