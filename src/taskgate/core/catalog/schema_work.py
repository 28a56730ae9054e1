"""How much work a JSON schema makes, before any of it is done.

A few hundred bytes can cost hours: `allOf` with two references to the next definition doubles with each definition, and
a schema that applies itself twice to a property doubles with each level of the value. Here the worst case is counted,
along the one path through a value on which the most parts of the schema come together, and refused when it is beyond
reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MAX_WORK = 20_000
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

# Keywords that judge the very same value again.
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE = ("not", "if", "then", "else")
# Keywords that judge any member, or any element.
_ANY_MEMBER = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_ANY_ELEMENT = ("items", "contains", "additionalItems", "unevaluatedItems")
_ANY = ""


class TooMuchWork(Exception):
    """The schema would take too long, or for ever."""


class SchemaWork:
    """Counts for one schema. What was counted is remembered."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._anchors = {
            p[word]: p for p in parts_of(root) for word in ("$anchor", "$dynamicAnchor") if _named(p, word)
        }
        self._together: dict[int, list[Mapping[str, Any]]] = {}
        self._open: set[int] = set()
        self._counted: dict[tuple[int, int], int] = {}

    def for_depth(self, depth: int) -> int:
        """The judgements along the worst path through a value of this depth. Raises TooMuchWork."""
        return self._count(self._root, depth)

    def _count(self, part: Any, depth: int) -> int:
        if not isinstance(part, Mapping):
            return 1
        key = (id(part), depth)
        if key not in self._counted:
            together = self._applied_together(part)
            deeper = 0
            if depth > 1:
                for parts in _by_place(together):
                    deeper = max(deeper, sum(self._count(child, depth - 1) for child in parts))
            if len(together) + deeper > MAX_WORK:
                raise TooMuchWork("it would take too long to apply")
            self._counted[key] = len(together) + deeper
        return self._counted[key]

    def _applied_together(self, part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """This part and all that judge the same value with it, each as often as it does."""
        key = id(part)
        if key in self._together:
            return self._together[key]
        if key in self._open:
            raise TooMuchWork("it applies itself to the same value without end")
        self._open.add(key)
        together = [part]
        for inner in self._same_value(part):
            together += self._applied_together(inner) if isinstance(inner, Mapping) else []
            if len(together) > MAX_WORK:
                raise TooMuchWork("it would take too long to apply")
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
                yield self._referred(target)

    def _referred(self, target: str) -> Any:
        if not target.startswith("#/"):
            return self._root if target == "#" else self._anchors.get(target[1:])
        found: Any = self._root
        for step in target[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(name)
            else:
                found = (
                    found[int(name)] if isinstance(found, list) and name.isdigit() and int(name) < len(found) else None
                )
        return found


def parts_of(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in the schema, whether it is a schema itself or not: to look at too many does no harm."""
    waiting = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            yield item
        waiting += inner_values(item)


def inner_values(item: Any) -> Iterator[Any]:
    """The values that a JSON value holds."""
    if isinstance(item, Mapping):
        yield from item.values()
    elif isinstance(item, list):
        yield from item


def _named(part: Mapping[str, Any], word: str) -> bool:
    return isinstance(part.get(word), str)


def _members(part: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    found = part.get(keyword)
    return found if isinstance(found, Mapping) else {}


def _by_place(together: list[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """The parts that come together at each place one level down. What judges any member joins every named one."""
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
