"""Arguments and structured output against the schemas that a tool declares.

Schemas come from upstreams and may be hostile: they are bounded in size and depth, may refer only to themselves, and
may not multiply their own work (a few hundred bytes of nested `allOf` can cost hours). A schema that cannot be used is
told apart from a value that does not fit, because only the second is the caller's fault. Messages name the place and
the reason, never the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskgate.core.catalog.schema_work import REFERENCES, SchemaWork, TooMuchWork, inner_values, parts_of
from taskgate.core.errors import CallerError, Executed, UpstreamError

MAX_SCHEMA_BYTES = 256 * 1024
MAX_DEPTH = 64
MAX_VIOLATIONS = 5

_BACKTRACK_LIMIT = 10_000


class UnusableSchema(UpstreamError):
    """A tool's schema cannot be used for checking."""

    def __init__(self, problem: str) -> None:
        super().__init__("unusable_schema", f"The tool's schema cannot be used: {problem}.")


class InvalidArguments(CallerError):
    """The arguments do not fit the tool's schema. Nothing was sent."""

    def __init__(self, tool: str, violations: tuple[Violation, ...]) -> None:
        listed = "; ".join(str(violation) for violation in violations)
        data = {"problems": [{"path": v.path, "reason": v.reason} for v in violations]}
        super().__init__(
            "invalid_arguments", f"The arguments of {tool} do not fit: {listed}.", gate="validate", data=data
        )


class InvalidOutput(UpstreamError):
    """The tool ran, and its structured output does not fit its own schema."""

    def __init__(self, tool: str, violations: tuple[Violation, ...]) -> None:
        listed = "; ".join(str(violation) for violation in violations)
        super().__init__(
            "invalid_output",
            f"The structured output of {tool} does not fit its schema: {listed}.",
            gate="validate",
            executed=Executed.YES,
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that does not fit: where, in the form of a JSON pointer, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the whole value'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """One compiled schema. Compile it once per tool definition."""

    _validator: Any
    _work: SchemaWork
    _harmless: bool = False
    """It refers to nothing, so that no part of it applies twice in one place, and a value's depth need not be looked at."""

    @classmethod
    def compile(cls, schema: Any) -> SchemaCheck:
        """Make a schema ready. Raises UnusableSchema."""
        _refuse_hostile(schema)
        work = SchemaWork(schema)
        _refuse_endless(work, 1)
        # Loaded when first needed, because an idle gateway should not carry it.
        import jsonschema_rs

        regex = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT)
        kind = jsonschema_rs.validator_for if "$schema" in schema else jsonschema_rs.Draft202012Validator
        try:
            validator = kind(schema, offline=True, mask="the value", pattern_options=regex)
            return cls(validator, work, _is_harmless(schema))
        except (ValueError, TypeError):
            raise UnusableSchema("it is not a valid JSON schema") from None

    def violations(self, value: Any) -> tuple[Violation, ...]:
        """What does not fit, the first few; nothing if all does. Raises UnusableSchema for a value nested too deep."""
        if not self._harmless:
            _refuse_endless(self._work, _depth(value))
        if self._validator.is_valid(value):
            return ()
        found: list[Violation] = []
        for error in self._validator.iter_errors(value):
            found.append(Violation(_pointer(error.instance_path), error.message[:300]))
            if len(found) >= MAX_VIOLATIONS:
                break
        return tuple(found)


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)[:200]


def _refuse_hostile(schema: Any) -> None:
    if not isinstance(schema, Mapping):
        raise UnusableSchema("it is not an object")
    _refuse_deep(schema)
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise UnusableSchema(f"it is larger than {MAX_SCHEMA_BYTES} bytes")
    for part in parts_of(schema):
        for keyword in REFERENCES:
            target = part.get(keyword)
            if isinstance(target, str) and not target.startswith("#"):
                raise UnusableSchema("it refers to something outside itself")


def _is_harmless(schema: Any) -> bool:
    return not any(keyword in part for part in parts_of(schema) for keyword in REFERENCES)


def _refuse_endless(work: SchemaWork, depth: int) -> None:
    try:
        work.for_depth(depth)
    except TooMuchWork as problem:
        raise UnusableSchema(str(problem)) from None
    except RecursionError:
        raise UnusableSchema("its references form too long a chain") from None


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level and depth < MAX_DEPTH:
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
