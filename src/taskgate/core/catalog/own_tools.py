"""Declarations of the gateway's own tools: name, description and parameters, and how arguments are read.

One declaration provides the input schema that callers see and the check of the arguments they send. The implementations
are in `gateway.own_tools`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, assert_never

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.apps import APP, with_interface
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.rendering import Audience
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import Generation
from taskgate.core.text.similar_names import similar_names

LONGEST_WAIT_MS: Final = 24 * 3600 * 1000
MAX_TEXT: Final = 10_000


class ArgumentKind(Enum):
    TEXT = "string"
    WHOLE = "integer"
    NUMBER = "number"
    YES_NO = "boolean"
    OBJECT = "object"
    TEXTS = "array"
    MESSAGE = "message"
    """Listed as text. A content block is accepted as well; the schema has no union for it, because several agent
    frameworks cannot load a tool with one.
    """


class Family(Enum):
    """Helpers let a caller without tasks follow its calls; the facade is all of MCP as tools; search replaces a catalog
    that is too large to list; the card shows tasks in the conversation; the skill tools find and read skills; the script
    tools run scripts.
    """

    HELPER = "helper"
    FACADE = "facade"
    SEARCH = "search"
    CARD = "card"
    SKILL = "skill"
    SCRIPT = "script"


class Parameter(msgspec.Struct, frozen=True):
    name: str
    kind: ArgumentKind
    about: str
    required: bool = False
    default: Any = None
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    longest: int = MAX_TEXT
    """Maximum length of a text, in characters."""

    def schema(self) -> dict[str, Any]:
        kind = ArgumentKind.TEXT if self.kind is ArgumentKind.MESSAGE else self.kind
        schema: dict[str, Any] = {"description": self.about, "type": kind.value}
        if self.kind is ArgumentKind.TEXTS:
            schema["items"] = {"type": "string"}
        if self.default is not None:
            schema["default"] = self.default
        if self.minimum is not None:
            schema["minimum"] = self.minimum
        if self.maximum is not None:
            schema["maximum"] = self.maximum
        if self.choices:
            schema["enum"] = list(self.choices)
        return schema

    def read(self, value: Any) -> Any:
        """Return the value, or raise an error that states what is valid. 5000.0 is an integer, as in JSON Schema."""
        if type(value) is float and self.kind in (ArgumentKind.WHOLE, ArgumentKind.NUMBER) and math.isfinite(value):
            value = math.ceil(value) if self.kind is ArgumentKind.NUMBER or value.is_integer() else value
        if not self._fits(value):
            raise CallerError("invalid_params", f'"{self.name}" must be {self._expected()}.')
        return value

    def _fits(self, value: Any) -> bool:
        match self.kind:
            case ArgumentKind.TEXT:
                return type(value) is str and len(value) <= self.longest and (not self.choices or value in self.choices)
            case ArgumentKind.WHOLE | ArgumentKind.NUMBER:
                within = type(value) is int and (self.minimum is None or value >= self.minimum)
                return within and (self.maximum is None or value <= self.maximum)
            case ArgumentKind.YES_NO:
                return type(value) is bool
            case ArgumentKind.OBJECT:
                return type(value) is dict
            case ArgumentKind.TEXTS:
                return type(value) is list and all(type(item) is str for item in value)
            case ArgumentKind.MESSAGE:
                return True
            case _:
                assert_never(self.kind)

    def _expected(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        match self.kind:
            case ArgumentKind.WHOLE if self.minimum is not None and self.maximum is not None:
                return f"a whole number from {self.minimum} to {self.maximum}"
            case ArgumentKind.WHOLE:
                return "a whole number"
            case ArgumentKind.NUMBER:
                return f"a number from {self.minimum} to {self.maximum}"
            case ArgumentKind.TEXT:
                return f"a string of at most {self.longest} characters"
            case ArgumentKind.YES_NO:
                return "true or false"
            case ArgumentKind.OBJECT:
                return "an object"
            case ArgumentKind.TEXTS:
                return "a list of strings"
            case ArgumentKind.MESSAGE:
                return "text, or a content block"
            case _:
                assert_never(self.kind)


def wait_parameter(default_ms: int | None, about: str) -> Parameter:
    capped = " A reply is held no longer than your client waits for one, usually 45 s; then call again."
    return Parameter(
        "timeout_ms", ArgumentKind.NUMBER, about + capped, default=default_ms, minimum=1, maximum=LONGEST_WAIT_MS
    )


class ToolFace(msgspec.Struct, frozen=True):
    """A tool of the gateway as callers see it."""

    name: OwnToolName
    about: str
    parameters: tuple[Parameter, ...] = ()
    family: Family = Family.FACADE
    reads_only: bool = True
    as_task: bool = False
    """Whether it may be called as a task."""

    def read(self, arguments: Any) -> dict[str, Any]:
        """Return the checked arguments with defaults filled in; omitted parameters without a default are missing."""
        given: Mapping[str, Any] = {} if arguments is None else arguments
        if type(given) is not dict:
            raise CallerError("invalid_params", "The arguments must be an object.")
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                raise CallerError("invalid_params", self._unknown(name, known))
        read: dict[str, Any] = {}
        for name, parameter in known.items():
            # Frameworks that generate types from the schema send null for parameters that the model omitted.
            if name in given and (given[name] is not None or parameter.required):
                read[name] = parameter.read(given[name])
            elif parameter.required:
                raise CallerError("invalid_params", f'{self.name} needs "{name}": {parameter.about}')
            elif parameter.default is not None:
                read[name] = parameter.default
        return read

    def _unknown(self, name: str, known: Mapping[str, Parameter]) -> str:
        near = similar_names(name, known)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        takes = ", ".join(known) or "nothing"
        return f"{self.name} has no parameter {name[:80]!r}; it takes {takes}.{hint}"

    def rendered(self, audience: Audience, *, interface: str | None = None, only_for_apps: bool = False) -> bytes:
        """Return the entry in `tools/list`. `interface`: the URI of the user interface that shows its results."""
        required = [parameter.name for parameter in self.parameters if parameter.required]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {parameter.name: parameter.schema() for parameter in self.parameters},
        }
        if required:
            schema["required"] = required
        hints: dict[str, Any] = {"readOnlyHint": self.reads_only, "openWorldHint": False}
        entry: dict[str, Any] = {"name": self.name, "description": self.about, "inputSchema": schema}
        if audience.generation is Generation.STATEFUL and audience.supports_tasks:
            support = "optional" if self.as_task else "forbidden"
            entry["annotations"] = {**hints, "taskSupport": support}
            entry["execution"] = {"taskSupport": support}
        else:
            entry["annotations"] = hints
        if only_for_apps:
            entry["_meta"] = {"ui": {"visibility": [APP]}}
        if interface is None:
            return wire.encode(entry)
        members = wire.members_of(wire.encode(entry))
        with_interface(members, interface)
        return wire.join(members)
