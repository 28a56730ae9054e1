"""Typed Python stubs of tools, for models that write scripts.

A stub is a signature with one comment of what the tool does and comments on nested shapes; it is valid Python. Definitions
come from servers: every text in a comment is one line of visible characters, every name in code is an identifier, and depth
and lengths are limited.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from taskgate.core.scripts.names import PythonName
from taskgate.core.text.plain_text import visible

_DEEPEST: Final = 4
_MAX_MEMBERS: Final = 30
_MAX_CHOICES: Final = 8
_DESCRIPTION: Final = 240
_DEFAULT: Final = 40
_SCALARS: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_ANY: Final = "Any"


class DescribedTool(msgspec.Struct, frozen=True):
    """A tool as its stub needs it."""

    name: PythonName
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None


class Stubs(msgspec.Struct, frozen=True):
    """The stubs of some tools, and how large they are."""

    text: str
    tools: int
    size: int
    """In bytes."""
    omitted: tuple[str, ...] = ()
    """Listed names of tools that did not fit."""


def stubs_of(tools: Iterable[DescribedTool], max_bytes: int) -> Stubs:
    """Return stubs in the order of namespaces and functions. Tools beyond `max_bytes` are listed in `omitted`, none is cut."""
    ordered = sorted(tools, key=lambda tool: (tool.name.namespace, tool.name.function))
    lines: list[str] = []
    size = count = 0
    omitted: list[str] = []
    for namespace, members in groupby(ordered, key=lambda tool: tool.name.namespace):
        head = f"class {namespace}:\n"
        for tool in members:
            text = head + stub_of(tool)
            if size + len(text.encode()) > max_bytes:
                omitted.append(tool.name.tool)
                continue
            lines.append(text)
            size += len(text.encode())
            count += 1
            head = ""
    return Stubs("".join(lines), count, size, tuple(omitted))


def stub_of(tool: DescribedTool) -> str:
    """Return the lines of one tool, indented below the class of its namespace."""
    schema = _Schema(tool.input_schema)
    parameters, comments = _parameters(tool, schema)
    lines = [f"# {text}" for text in (_line(tool.description), *comments, _returns(tool)) if text]
    lines.append(f"async def {tool.name.function}({parameters}): ...")
    return "".join(f"    {line}\n" for line in lines)


def parameter_order(input_schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The parameters in the order in which a script may pass them by position: required ones first, as in the stub."""
    properties, required = _members(input_schema)
    named = [name for name in properties if _is_parameter(name)]
    return tuple(sorted(named, key=lambda name: name not in required))


def _parameters(tool: DescribedTool, schema: _Schema) -> tuple[str, list[str]]:
    properties, required = _members(tool.input_schema)
    shown: list[str] = []
    comments: list[str] = []
    for name in parameter_order(tool.input_schema):
        kind = schema.type_of(properties[name])
        shown.append(f"{name}: {kind}" if name in required else f"{name}: {kind} = {_default(properties[name])}")
        shape = schema.shape_of(properties[name])
        if shape:
            comments.append(f"{name}: {shape}")
    odd = [name for name in properties if not _is_parameter(name)]
    if odd:
        listed = ", ".join(_text(name) for name in odd[:_MAX_MEMBERS])
        comments.append(f"also {listed}: await call_tool({_text(tool.name.tool)}, {{...}})")
    return ", ".join(shown), comments


def _returns(tool: DescribedTool) -> str:
    if tool.output_schema is None:
        return ""
    schema = _Schema(tool.output_schema)
    return f"returns {schema.shape_of(tool.output_schema) or schema.type_of(tool.output_schema)}"


def _members(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], frozenset[str]]:
    properties, required = schema.get("properties"), schema.get("required")
    return (
        properties if isinstance(properties, Mapping) else {},
        frozenset(name for name in required if isinstance(name, str)) if isinstance(required, list) else frozenset(),
    )


def _is_parameter(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and len(name) <= 80


def _default(schema: Any) -> str:
    """A short scalar as Python writes it; otherwise None, which is not sent."""
    value = schema.get("default") if isinstance(schema, Mapping) else None
    text = ascii(value)
    return text if isinstance(value, str | bool | int) and len(text) <= _DEFAULT else "None"


def _line(text: str) -> str:
    """One line of visible characters."""
    joined = " ".join(visible(text[: 8 * _DESCRIPTION], keep=" \t\n\r").split())
    return joined if len(joined) <= _DESCRIPTION else joined[: _DESCRIPTION - 1] + "…"


def _text(value: str) -> str:
    """A quoted text without anything invisible."""
    return json.dumps(value[:80])


class _Schema(msgspec.Struct, frozen=True, eq=False):
    """A JSON schema as Python types. References are followed only within the schema and up to `_DEEPEST` levels."""

    root: Mapping[str, Any]

    def type_of(self, schema: Any, depth: int = 0) -> str:
        """The type of a parameter: `str`, `list[int]`, `dict`."""
        found = self._resolved(schema, depth)
        if found is None or depth > _DEEPEST:
            return _ANY
        choices = (
            found.get("enum") if isinstance(found.get("enum"), list) else [found["const"]] if "const" in found else None
        )
        if choices is not None:
            return _literal(choices)
        options = found.get("anyOf") or found.get("oneOf")
        if isinstance(options, list):
            return _union([self.type_of(option, depth + 1) for option in options[: _MAX_CHOICES + 1]])
        kind = found.get("type")
        if isinstance(kind, list):
            return _union([self._simple(one, found, depth) for one in kind[: _MAX_CHOICES + 1]])
        return self._simple(kind, found, depth)

    def _simple(self, kind: Any, schema: Mapping[str, Any], depth: int) -> str:
        if kind == "array":
            return f"list[{self.type_of(schema['items'], depth + 1)}]" if "items" in schema else "list"
        if kind == "object" or (kind is None and "properties" in schema):
            return "dict"
        return _SCALARS.get(kind, _ANY) if isinstance(kind, str) else _ANY

    def shape_of(self, schema: Any, depth: int = 0) -> str:
        """The members of an object, or of the objects in a list; empty if there is nothing to add to the type."""
        found = self._resolved(schema, depth)
        if found is None or depth > _DEEPEST:
            return ""
        if isinstance(found.get("properties"), Mapping):
            return self._object(found, depth)
        if "items" in found:
            inner = self.shape_of(found["items"], depth + 1)
            return f"[{inner}, ...]" if inner else ""
        return ""

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties, required = _members(schema)
        members = [
            f"{_text(name)}{'' if name in required else '?'}: {self.shape_of(of, depth + 1) or self.type_of(of, depth + 1)}"
            for name, of in list(properties.items())[:_MAX_MEMBERS]
        ]
        rest = ["..."] if len(properties) > _MAX_MEMBERS else []
        return "{" + ", ".join(members + rest) + "}"

    def _resolved(self, schema: Any, depth: int) -> Mapping[str, Any] | None:
        """The schema behind a reference; None if there is none."""
        for _ in range(_DEEPEST):
            if not isinstance(schema, Mapping):
                return None
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = self._referenced(reference)
        return None

    def _referenced(self, reference: str) -> Any:
        found: Any = self.root
        parts = reference.split("/")
        if parts[0] != "#" or len(parts) > 8:
            return None
        for part in parts[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return found


def _literal(values: Sequence[Any]) -> str:
    plain = [value for value in values if isinstance(value, str | bool | int) and len(ascii(value)) <= _DEFAULT]
    if not values or len(plain) < len(values) or len(plain) > _MAX_CHOICES:
        return "str" if all(isinstance(value, str) for value in values) and values else _ANY
    return f"Literal[{', '.join(map(ascii, plain))}]"


def _union(types: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(types))
    if not distinct or _ANY in distinct or len(distinct) > _MAX_CHOICES:
        return _ANY
    return " | ".join(distinct)
