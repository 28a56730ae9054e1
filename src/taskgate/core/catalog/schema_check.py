"""Check arguments and structured output against the schemas that a tool declares.

Schemas come from servers and may be hostile. They are limited in size and depth, may refer only to themselves, and the
cost of a check is computed before it starts (a few hundred bytes of nested `allOf` can cost hours). A value that
exceeds the budget is not checked, and that is reported. Only the first violation is searched for. An unusable schema
and an invalid value are different errors, because only the second one is the caller's fault. Messages name the place
and the reason, never the value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from taskgate.core.catalog.schema_fault import UNKNOWN_PLACE, Explainer, FaultFinder
from taskgate.core.catalog.schema_work import (
    REFERENCES,
    SchemaWork,
    Shape,
    TooMuchWork,
    Weight,
    inner_values,
    parts_of,
)
from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.core.raw_json import Raw

MAX_SCHEMA_BYTES: Final = 256 * 1024
MAX_PARTS: Final = 1500
MAX_PATTERNS: Final = 100
MAX_DEPTH: Final = 64
BUDGET: Final = 2_000_000
"""Limit on the units of `schema_work` of one check: about 20 ms, during which the event loop is blocked."""
MAX_EXPLAINED: Final = 64 * 1024
"""Bytes. Larger invalid values are reported without the place: finding it takes many times as long as detecting that the value is
invalid.
"""

_BACKTRACK_LIMIT: Final = 500
_REGEX_BYTES: Final = 1 << 16
_MAX_EXAMINED: Final = 20_000
_SELF: Final = "taskgate:schema"


class UnusableSchema(UpstreamError):
    """A tool's schema cannot be used for validation."""

    def __init__(self, problem: str) -> None:
        super().__init__("unusable_schema", f"The tool's schema cannot be used: {problem}.")


class InvalidArguments(CallerError):
    """The arguments violate the tool's schema. Nothing was sent."""

    def __init__(self, tool: str, violations: tuple[Violation, ...]) -> None:
        listed = "; ".join(str(violation) for violation in violations)
        data = {"problems": [{"path": v.path, "reason": v.reason} for v in violations]}
        super().__init__(
            "invalid_arguments",
            f"The arguments of {tool} do not match the schema: {listed}.",
            gate="validate",
            data=data,
        )


class InvalidOutput(UpstreamError):
    """The tool ran, and its structured output violates its own schema."""

    def __init__(self, tool: str, violations: tuple[Violation, ...]) -> None:
        listed = "; ".join(str(violation) for violation in violations)
        super().__init__(
            "invalid_output",
            f"The structured output of {tool} does not match its schema: {listed}.",
            gate="validate",
            executed=Executed.YES,
        )


class Violation(msgspec.Struct, frozen=True):
    """One violation: where, as a JSON pointer, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the whole value'}: {self.reason}"


class SchemaCheck:
    """One compiled schema. Compile it once per tool definition."""

    __slots__ = ("_dialect", "_schema", "_weight", "_work", "fits_whole", "max_direct_bytes")

    def __init__(self, schema: Mapping[str, Any], work: SchemaWork) -> None:
        # Imported on first use, to keep an idle gateway small.
        import jsonschema_rs

        kind = jsonschema_rs.validator_for if "$schema" in schema else jsonschema_rs.Draft202012Validator
        self._schema = schema
        validator = _compiled(jsonschema_rs, kind, schema)
        self._dialect = type(validator)
        self.fits_whole: Callable[[Any], bool] = validator.is_valid
        """Whether a value is valid. Call it only if the work is bounded: see `max_direct_bytes`."""
        self._work = work
        self._weight: Weight | None = None
        """The weight of the heaviest place in any value; None if it depends on the depth of the value."""
        with suppress(TooMuchWork):
            self._weight = self._work.heaviest(MAX_DEPTH)
        weight = self._weight or Weight(BUDGET)
        heaviest = weight.objects + weight.arrays + weight.values + weight.characters
        self.max_direct_bytes = BUDGET // max(1, heaviest)
        """Number of bytes that can be checked regardless of content."""

    @classmethod
    def compile(cls, schema: Any) -> SchemaCheck:
        """Compile a schema. Raises UnusableSchema."""
        _refuse_hostile(schema)
        try:
            work = SchemaWork(schema)
        except TooMuchWork as problem:
            raise UnusableSchema(str(problem)) from None
        except RecursionError:
            raise UnusableSchema("its references form too long a chain") from None
        return cls(schema, work)

    def violations(self, value: Any, text: bytes | Raw | None = None) -> tuple[Violation, ...]:
        """Return the first violation; empty if the value is valid. Raises UnusableSchema if the check would take too
        long.

        `text` is the JSON text of the value, or a text that contains it: its size bounds the work.
        """
        if text is None:
            text = json.dumps(value).encode()
        if len(text) > self.max_direct_bytes:
            self._refuse_too_much(value, text)
        if self.fits_whole(value):
            return ()
        if len(text) > MAX_EXPLAINED:
            return (Violation("", UNKNOWN_PLACE),)
        place, reason = FaultFinder(self._work, self).find(self._schema, value)
        return (Violation(_pointer(place), reason[:300]),)

    def explainer(self, plain: Mapping[str, Any]) -> Explainer:
        """Return a function that returns why a value violates keywords without inner schemas; for the fault finder."""
        if not plain:
            return lambda _: None
        import jsonschema_rs

        validator = self._dialect(plain, offline=True, mask="the value", pattern_options=_backtracking(jsonschema_rs))

        def explain(value: Any) -> str | None:
            try:
                validator.validate(value)
            except jsonschema_rs.ValidationError as error:
                return str(error.message)
            return None

        return explain

    def fits(self, pointer: str, value: Any) -> bool:
        """Whether a value is valid for one part of the schema; for the fault finder."""
        import jsonschema_rs

        if pointer == "#":
            return self.fits_whole(value)
        try:
            registry = jsonschema_rs.Registry([(_SELF, dict(self._schema))])
            part = {"$ref": f"{_SELF}{pointer}"}
            options = _backtracking(jsonschema_rs)
            validator = self._dialect(part, registry=registry, offline=True, mask="the value", pattern_options=options)
        except (ValueError, TypeError):
            return False
        return bool(validator.is_valid(value))

    def _refuse_too_much(self, value: Any, text: bytes | Raw) -> None:
        weight = self._weight
        try:
            if weight is None:
                weight = self._work.heaviest(_depth(value))
        except TooMuchWork as problem:
            raise UnusableSchema(str(problem)) from None
        if weight.of(Shape.of_text(bytes(text))) > BUDGET:
            raise UnusableSchema(f"it would take too long to apply to {len(text)} bytes")


def _compiled(library: Any, kind: Any, schema: Mapping[str, Any]) -> Any:
    """Return the validator. Its patterns use backtracking only if the linear engine does not support them."""
    linear = library.RegexOptions(size_limit=_REGEX_BYTES, dfa_size_limit=_REGEX_BYTES)
    for options in (linear, _backtracking(library)):
        try:
            return kind(schema, offline=True, mask="the value", pattern_options=options)
        except (ValueError, TypeError):
            continue
    raise UnusableSchema("it is not a valid JSON schema")


def _backtracking(library: Any) -> Any:
    return library.FancyRegexOptions(
        backtrack_limit=_BACKTRACK_LIMIT, size_limit=_REGEX_BYTES, dfa_size_limit=_REGEX_BYTES
    )


def _pointer(path: Iterable[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)[:200]


def _refuse_hostile(schema: Any) -> None:
    if not isinstance(schema, dict):
        raise UnusableSchema("it is not an object")
    patterns = 0
    _refuse_deep(schema)
    for parts, part in enumerate(parts_of(schema)):
        patterns += "pattern" in part
        patterns += len(part["patternProperties"]) if isinstance(part.get("patternProperties"), dict) else 0
        if parts >= MAX_PARTS or patterns > MAX_PATTERNS:
            raise UnusableSchema(f"it has more than {MAX_PARTS} parts or {MAX_PATTERNS} patterns")
        for keyword in REFERENCES:
            target = part.get(keyword)
            if isinstance(target, str) and not target.startswith("#"):
                raise UnusableSchema("it refers to something outside itself")
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise UnusableSchema(f"it is larger than {MAX_SCHEMA_BYTES} bytes")


def _depth(value: Any) -> int:
    """Return the depth of a value, at most MAX_DEPTH; MAX_DEPTH if it is too large to be traversed."""
    level, depth, seen = [value], 0, 0
    while level and depth < MAX_DEPTH:
        seen += len(level)
        if seen > _MAX_EXAMINED:
            return MAX_DEPTH
        level = [inner for item in level for inner in inner_values(item)]
        depth += 1
    return depth


def _refuse_deep(schema: Any) -> None:
    level = [schema]
    for _ in range(MAX_DEPTH):
        level = [inner for item in level for inner in inner_values(item)]
        if not level:
            return
    raise UnusableSchema(f"it is nested deeper than {MAX_DEPTH} levels")
