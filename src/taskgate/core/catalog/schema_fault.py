"""Find the first place where a value violates its schema, and why, in a bounded number of steps.

The validator itself would collect the errors of every alternative of every `anyOf` before its first error, which takes
seconds and gigabytes for schemas that servers really use. Here keywords are tried one at a time, outermost first; an
alternative is named as such and not searched. Reasons never contain the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

from taskgate.core.catalog.schema_work import (
    REFERENCES,
    SchemaWork,
)

MAX_STEPS: Final = 3000
MAX_TRIES: Final = 20
UNKNOWN_PLACE: Final = "it does not match (it is too large to find the place)"

# Keywords that apply to a value but not to its content.
_PLAIN: Final = frozenset({
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems",
    "minProperties", "maxProperties", "required", "dependentRequired",
})  # fmt: skip
_ALTERNATIVES: Final = frozenset({
    "anyOf", "oneOf", "not", "if", "contains", "propertyNames", "patternProperties", "dependentSchemas",
    "additionalItems", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_Step = str | int
_Place = tuple[_Step, ...]


Explainer = Callable[[Any], str | None]


class SchemaValidator(Protocol):
    """Applies one keyword or one part of a schema to a value."""

    def explainer(self, plain: Mapping[str, Any]) -> Explainer:
        """Return a function that returns why a value violates a schema without inner schemas; None if it does not."""

    def fits(self, pointer: str, value: Any) -> bool:
        """Whether a value is valid for the part of the schema at a pointer."""


class OutOfSteps(Exception):
    """The fault was not found within the limit."""


class FaultFinder:
    """Finds the first fault of one value."""

    __slots__ = ("_plain", "_steps", "_tries", "_validator", "_work")

    def __init__(self, work: SchemaWork, validator: SchemaValidator) -> None:
        self._work = work
        self._validator = validator
        self._plain: dict[int, Explainer] = {}
        self._steps, self._tries = MAX_STEPS, MAX_TRIES

    def find(self, schema: Any, value: Any) -> tuple[_Place, str]:
        """Return the place and the reason; an unknown place if it takes too long."""
        try:
            return self._find(schema, "#", value, ()) or ((), "it does not match")
        except (OutOfSteps, RecursionError):
            return (), UNKNOWN_PLACE

    def _find(self, schema: Any, pointer: str, value: Any, place: _Place) -> tuple[_Place, str] | None:
        self._steps -= 1
        if self._steps < 0:
            raise OutOfSteps
        if schema is False:
            return place, "nothing is allowed here"
        if not isinstance(schema, Mapping):
            return None
        reason = self._plain_part(schema)(value)
        if reason is not None:
            return place, reason
        for inner, at, item, step in self._inner(schema, pointer, value):
            found = self._find(inner, at, item, place if step is None else (*place, step))
            if found is not None:
                return found
        return self._alternatives(schema, pointer, value, place)

    def _plain_part(self, schema: Mapping[str, Any]) -> Explainer:
        """Return the check of a part without its inner schemas."""
        known = self._plain.get(id(schema))
        if known is None:
            plain = {keyword: schema[keyword] for keyword in schema if keyword in _PLAIN}
            if schema.get("additionalProperties") is False:
                names = {
                    keyword: dict.fromkeys(_object(schema, keyword), True)
                    for keyword in ("properties", "patternProperties")
                }
                plain |= {"additionalProperties": False, **names}
            known = self._plain[id(schema)] = self._validator.explainer(plain)
        return known

    def _inner(
        self, schema: Mapping[str, Any], pointer: str, value: Any
    ) -> Iterator[tuple[Any, str, Any, _Step | None]]:
        """Subschemas that must be valid: each with its pointer, the value it applies to and the step to it."""
        for keyword in REFERENCES:
            target = schema.get(keyword)
            if isinstance(target, str):
                yield self._work.referred(target), target, value, None
        for number, part in enumerate(_list(schema, "allOf")):
            yield part, f"{pointer}/allOf/{number}", value, None
        if isinstance(value, dict):
            yield from _members(schema, pointer, value)
        elif isinstance(value, list):
            prefix = _list(schema, "prefixItems")
            for number, item in enumerate(value):
                if number < len(prefix):
                    yield prefix[number], f"{pointer}/prefixItems/{number}", item, number
                else:
                    yield schema.get("items"), f"{pointer}/items", item, number

    def _alternatives(
        self, schema: Mapping[str, Any], pointer: str, value: Any, place: _Place
    ) -> tuple[_Place, str] | None:
        """Called when nothing else is invalid: if the part as a whole is invalid, the cause is one of its alternatives."""
        keywords = [keyword for keyword in schema if keyword in _ALTERNATIVES]
        if not keywords:
            return None
        self._tries -= 1
        if self._tries < 0:
            raise OutOfSteps
        if self._validator.fits(pointer, value):
            return None
        return place, f"it does not match {' or '.join(f'`{keyword}`' for keyword in keywords)}"


def _members(
    schema: Mapping[str, Any], pointer: str, value: dict[str, Any]
) -> Iterator[tuple[Any, str, Any, _Step | None]]:
    properties, rest = _object(schema, "properties"), schema.get("additionalProperties")
    for name, item in value.items():
        if name in properties:
            yield properties[name], f"{pointer}/properties/{quote(_escaped(name), safe='')}", item, name
        elif isinstance(rest, Mapping) and "patternProperties" not in schema:
            yield rest, f"{pointer}/additionalProperties", item, name


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _object(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    found = schema.get(keyword)
    return found if isinstance(found, Mapping) else {}


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []
