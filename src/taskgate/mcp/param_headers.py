"""Tool arguments that a stateless HTTP call repeats in `Mcp-Param-*` headers (2026-07-28, transports, custom headers).

A property of a tool's input schema may bear `x-mcp-header: X`; its argument then also travels as `Mcp-Param-X`, so that
what stands between can route without reading the body. Here are the rules for such schemas, the values to send, and the
comparison of what came. A tool whose annotations break the rules must not be offered to stateless callers. We decide on
the body, always.

Any text can be the value of a header (2026-07-28, transports: values that a header cannot carry): printable ASCII without
padding stands for itself; everything else, and what looks like the encoding, travels as base64 between `=?base64?` and `?=`.
The same holds for `Mcp-Name`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, assert_never

ANNOTATION = "x-mcp-header"
PREFIX = "mcp-param-"
MAX_SCHEMA_DEPTH = 64
MAX_HEADERS = 100

_START = "=?base64?"
_END = "?="
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}")
_INTEGER = re.compile(r"(-?\d{1,400})(?:\.0{1,400})?")
# Keywords whose value is data and not a schema: an annotation in there is somebody's example.
_DATA = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})


class InvalidParamHeader(ValueError):
    """A tool's annotations break the rules."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"The tool's {ANNOTATION} cannot be used: {problem}.")


class ParamType(StrEnum):
    """The types an annotated property may have."""

    STRING = "string"
    INTEGER = "integer"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True)
class ParamHeader:
    """One annotated property: its header in lower case, the path to its argument, its type."""

    header: str
    path: tuple[str, ...]
    type: ParamType


def encode_header_value(text: str) -> str:
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?"):
        return text
    return _START + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii") + _END


def decode_header_value(value: str) -> str | None:
    """The text that a header stands for, or None where its encoding is broken or not the canonical one."""
    if not (value.startswith(_START) and value.endswith(_END) and len(value) >= len(_START) + len(_END)):
        return value
    encoded = value[len(_START) : -len(_END)]
    try:
        decoded = base64.b64decode(encoded, validate=True)
        return decoded.decode("utf-8") if base64.b64encode(decoded).decode("ascii") == encoded else None
    except ValueError:
        return None


def param_headers_of(schema: Any) -> tuple[ParamHeader, ...]:
    """The annotated properties of an input schema. Raises InvalidParamHeader if any of them breaks the rules."""
    if not isinstance(schema, Mapping):
        return ()
    if ANNOTATION in schema:
        raise InvalidParamHeader("it stands on the whole input instead of a property")
    found = tuple(islice(_walk(schema, (), 0), MAX_HEADERS + 1))
    if len(found) > MAX_HEADERS:
        raise InvalidParamHeader(f"more than {MAX_HEADERS} properties have one")
    seen: set[str] = set()
    for param in found:
        if param.header in seen:
            raise InvalidParamHeader(f"two properties share the header {param.header!r}")
        seen.add(param.header)
    return found


def header_values(params: tuple[ParamHeader, ...], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers to send with these arguments. An argument that is absent, null or of another type has none."""
    values: dict[str, str] = {}
    for param in params:
        value = _plain(param, _at(arguments, param.path))
        if value is not None:
            values[param.header] = encode_header_value(value)
    return values


def mismatch(params: tuple[ParamHeader, ...], arguments: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """What does not agree between the headers that came (names in lower case) and the body; None if all does.

    Headers that no property asks for are not ours to judge.
    """
    for param in params:
        expected = _plain(param, _at(arguments, param.path))
        received = headers.get(param.header)
        if expected is None and received is None:
            continue
        if received is None:
            return f"the header {param.header} is missing although the argument is given"
        if expected is None:
            return f"the header {param.header} is given although the argument is not"
        decoded = decode_header_value(received)
        if decoded is None:
            return f"the header {param.header} is not properly encoded"
        if not _equal(param.type, decoded, expected):
            return f"the header {param.header} differs from the argument"
    return None


def _walk(schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Iterator[ParamHeader]:
    if depth > MAX_SCHEMA_DEPTH:
        raise InvalidParamHeader(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    for keyword, value in schema.items():
        if keyword != "properties" and keyword not in _DATA and _annotated_within(value):
            raise InvalidParamHeader(f"it stands under {keyword!r}, where the argument cannot be found by name alone")
    properties = schema.get("properties")
    for name, part in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(part, Mapping):
            if ANNOTATION in part:
                yield _param(part, (*path, name))
            yield from _walk({k: v for k, v in part.items() if k != ANNOTATION}, (*path, name), depth + 1)


def _param(part: Mapping[str, Any], path: tuple[str, ...]) -> ParamHeader:
    header, kind = part[ANNOTATION], part.get("type")
    shown = ".".join(path)[:80]
    if not isinstance(header, str) or not _TOKEN.fullmatch(header):
        raise InvalidParamHeader(f"the header name at {shown!r} is not an HTTP token")
    if not isinstance(kind, str) or kind not in ParamType.__members__.values():
        raise InvalidParamHeader(f"the property {shown!r} is not of type string, integer or boolean")
    return ParamHeader(PREFIX + header.lower(), path, ParamType(kind))


def _annotated_within(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_SCHEMA_DEPTH):
        if not level:
            return False
        # An object there is a property that happens to have this name.
        if any(isinstance(item, Mapping) and not isinstance(item.get(ANNOTATION, {}), Mapping) for item in level):
            return True
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                deeper += [part for keyword, part in item.items() if keyword not in _DATA]
            elif isinstance(item, list):
                deeper += item
        level = deeper
    return True  # too deep to know, so not to be trusted


def _at(arguments: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def _plain(param: ParamHeader, value: Any) -> str | None:
    match param.type:
        case ParamType.STRING:
            return value if isinstance(value, str) else None
        case ParamType.BOOLEAN:
            return ("true" if value else "false") if isinstance(value, bool) else None
        case ParamType.INTEGER:
            if isinstance(value, bool):
                return None
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            return str(value) if isinstance(value, int) else None
        case _:
            assert_never(param.type)


def _equal(kind: ParamType, received: str, expected: str) -> bool:
    if kind is not ParamType.INTEGER:
        return received == expected
    number = _INTEGER.fullmatch(received)
    return number is not None and int(number[1]) == int(expected)
