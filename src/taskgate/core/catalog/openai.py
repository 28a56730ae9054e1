"""A scope's tools as OpenAI-style function definitions, and a model's call back to the tool it means.

Such callers allow only `[A-Za-z0-9_-]` and 64 characters in a name. The name shown to MCP callers is used where it
fits, else the reversible alias, else the shortened prefixed form. What a scope sees is decided before; nothing here
calls anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from taskgate.core.catalog.names import NameTable, Pair, encode_alias, wire_name
from taskgate.core.errors import CallerError

MAX_ARGUMENTS = 4 * 1024 * 1024

_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """What a model wants to have called. `id` is the model's own, to be repeated with the answer."""

    id: str
    server: str
    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FunctionExport:
    """Function definitions for one scope, with the way back."""

    definitions: tuple[dict[str, Any], ...]
    pairs: Mapping[str, Pair]
    names: NameTable

    def call_of(self, call: Mapping[str, Any]) -> FunctionCall:
        """Read one tool call of a model, in the chat or the responses form. Raises CallerError."""
        function = call.get("function", call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise CallerError("invalid_tool_call", "This is not a function call: it has no name.")
        pair = self.pairs.get(function["name"]) or self.names.resolve(function["name"])
        if pair is None:
            raise CallerError("unknown_tool", f"There is no function {function['name'][:80]!r} in this scope.")
        given = call.get("call_id") or call.get("id")
        return FunctionCall(given if isinstance(given, str) else "", *pair, _arguments(function.get("arguments")))


def export_functions(
    tools: Iterable[tuple[Pair, Mapping[str, Any]]], names: NameTable, flat: bool = False
) -> FunctionExport:
    """Definitions of all tools that have a name in the table. `flat` gives the form of the responses interface."""
    definitions: dict[Pair, dict[str, Any]] = {}
    pairs: dict[str, Pair] = {}
    for pair, definition in tools:
        name = next((name for name in function_names(pair, names) if name not in pairs), None)
        if name is not None and pair not in definitions:
            pairs[name] = pair
            definitions[pair] = _definition(name, definition, flat)
    return FunctionExport(tuple(definitions.values()), pairs, names)


def function_names(pair: Pair, names: NameTable) -> list[str]:
    """The names that one tool may have among function definitions, the best first. A refused tool has none."""
    if pair not in names.to_wire:
        return []
    return [
        name for name in (names.to_wire[pair], encode_alias(*pair), wire_name(*pair)) if _FUNCTION_NAME.fullmatch(name)
    ]


def _definition(name: str, tool: Mapping[str, Any], flat: bool) -> dict[str, Any]:
    schema = tool.get("inputSchema")
    text = tool.get("description") or tool.get("title") or ""
    function = {
        "name": name,
        "description": text if isinstance(text, str) else "",
        "parameters": schema if isinstance(schema, Mapping) and schema else _NO_PARAMETERS,
    }
    return {"type": "function", **function} if flat else {"type": "function", "function": function}


def _arguments(given: Any) -> Mapping[str, Any]:
    if isinstance(given, str):
        if len(given) > MAX_ARGUMENTS:
            raise CallerError("invalid_arguments", "The function's arguments are too long.")
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            raise CallerError("invalid_arguments", "The function's arguments are not valid JSON.") from None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise CallerError("invalid_arguments", "The function's arguments must be an object.")
    return given
