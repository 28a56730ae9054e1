"""`Mcp-Param-*` headers, which repeat tool arguments of a stateless HTTP call (2026-07-28, transports, custom headers).

A property of a tool's input schema may have `x-mcp-header: X`. Its argument is then also sent as `Mcp-Param-X`, so that
intermediaries can route without parsing the body. This module validates such schemas, computes the headers to send, and
compares received headers with the body. A tool with invalid annotations must not be listed for stateless callers.
Decisions are always based on the body.

Printable ASCII without surrounding whitespace is sent as is. Any other value, and a value that looks like the encoding,
is sent as base64 between `=?base64?` and `?=`. The same encoding applies to `Mcp-Name`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any, assert_never

import msgspec

ANNOTATION = "x-mcp-header"
PREFIX = "mcp-param-"
MAX_SCHEMA_DEPTH = 64
MAX_HEADERS = 100

_START = "=?base64?"
_END = "?="
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}")
_INTEGER = re.compile(r"(-?\d{1,400})(?:\.0{1,400})?")
# Keywords whose value is data, not a schema: an annotation in it has no effect.
_DATA_KEYWORDS = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})


class InvalidParamHeader(ValueError):
    """The annotations of a tool are invalid."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"Invalid {ANNOTATION} in the tool's input schema: {problem}.")


class ParamType(StrEnum):
    """The types that an annotated property may have."""

    STRING = "string"
    INTEGER = "integer"
    BOOLEAN = "boolean"


class ParamHeader(msgspec.Struct, frozen=True):
    """An annotated property: its header in lower case, the path to its argument, and its type."""

    header: str
    path: tuple[str, ...]
    type: ParamType


def encode_header_value(text: str) -> str:
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?"):
        return text
    return _START + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii") + _END


def decode_header_value(value: str) -> str | None:
    """Return the text that a header value encodes, or None if its encoding is invalid or not canonical."""
    if not (value.startswith(_START) and value.endswith(_END) and len(value) >= len(_START) + len(_END)):
        return value
    encoded = value[len(_START) : -len(_END)]
    try:
        decoded = base64.b64decode(encoded, validate=True)
        return decoded.decode("utf-8") if base64.b64encode(decoded).decode("ascii") == encoded else None
    except ValueError:
        return None


def param_headers_of(schema: Any) -> tuple[ParamHeader, ...]:
    """Return the annotated properties of an input schema. Raises InvalidParamHeader."""
    if not isinstance(schema, Mapping):
        return ()
    if ANNOTATION in schema:
        raise InvalidParamHeader("it annotates the whole input instead of a property")
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
    """Return the headers to send with these arguments. Absent and null arguments and those of another type have none."""
    values: dict[str, str] = {}
    for param in params:
        value = _as_text(param, _argument_at(arguments, param.path))
        if value is not None:
            values[param.header] = encode_header_value(value)
    return values


def mismatch(params: tuple[ParamHeader, ...], arguments: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """Return a description of the first header (names in lower case) that contradicts the body, or None.

    Headers that belong to no annotated property are ignored.
    """
    for param in params:
        expected = _as_text(param, _argument_at(arguments, param.path))
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
        if keyword != "properties" and keyword not in _DATA_KEYWORDS and _annotated_within(value):
            raise InvalidParamHeader(f"it is used under {keyword!r}, where the argument has no fixed path")
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
        # With an object as its value, it is a property of this name and not an annotation.
        if any(isinstance(item, Mapping) and not isinstance(item.get(ANNOTATION, {}), Mapping) for item in level):
            return True
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                deeper += [part for keyword, part in item.items() if keyword not in _DATA_KEYWORDS]
            elif isinstance(item, list):
                deeper += item
        level = deeper
    return True  # too deep to check: treat it as annotated


def _argument_at(arguments: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def _as_text(param: ParamHeader, value: Any) -> str | None:
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
