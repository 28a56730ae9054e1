"""Which tool arguments travel as `Mcp-Param-*` headers, and how a value is written in a header.

Pure functions over a tool's input schema and a call's arguments; the stateless dialect calls them for HTTP.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")
_PRIMITIVES = {"string", "integer", "boolean"}


class InvalidParamHeader(ValueError):
    """A tool's `x-mcp-header` breaks the rules; such a tool must not be used."""


def param_headers(schema: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Header name -> path of the argument it mirrors."""
    found: dict[str, tuple[str, ...]] = {}
    for name, path, prop in _annotations(schema, ()):
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidParamHeader(f"{name!r} is not a header name")
        if prop.get("type") not in _PRIMITIVES:
            raise InvalidParamHeader(f"{name!r} annotates a property that is not a string, integer or boolean")
        if name.lower() in (known.lower() for known in found):
            raise InvalidParamHeader(f"{name!r} is used twice")
        found[name] = path
    if _count(schema) != len(found):
        raise InvalidParamHeader("x-mcp-header stands where no argument can be found by name alone")
    return found


def header_lines(headers: Mapping[str, tuple[str, ...]], arguments: Mapping[str, Any]) -> str:
    """The header lines for one call; absent and null arguments have none."""
    lines = []
    for name, path in headers.items():
        value: Any = arguments
        for step in path:
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            lines.append(f"mcp-param-{name}: {header_value(value)}\r\n")
    return "".join(lines)


def header_value(value: Any) -> str:
    """The value as header text: plain where that is unmistakable, base64 where it is not."""
    return _header_text(("true" if value else "false") if isinstance(value, bool) else str(value))


@lru_cache(4096)  # the same few tool names and task ids, again and again
def _header_text(text: str) -> str:
    looks_encoded = text.lower().startswith("=?base64?") and text.endswith("?=")
    if _PLAIN.fullmatch(text) and not looks_encoded:
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'surrogatepass')).decode()}?="


def _annotations(schema: Any, path: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...], Mapping[str, Any]]]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return
    for name, prop in properties.items():
        if not isinstance(prop, Mapping):
            continue
        if "x-mcp-header" in prop:
            yield prop["x-mcp-header"], (*path, name), prop
        yield from _annotations(prop, (*path, name))


def _count(schema: Any, depth: int = 0) -> int:
    if depth > 64:
        raise InvalidParamHeader("the input schema is nested too deeply")
    if isinstance(schema, Mapping):
        here = sum(1 for key, value in schema.items() if key == "x-mcp-header" and not isinstance(value, Mapping))
        return here + sum(_count(value, depth + 1) for key, value in schema.items() if key not in _DATA)
    if isinstance(schema, list):
        return sum(_count(value, depth + 1) for value in schema)
    return 0


# Keywords whose values are data, not schemas.
_DATA = {"const", "default", "enum", "examples"}
