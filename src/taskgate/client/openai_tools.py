"""For agent loops: convert a server's tools to OpenAI-style definitions, and run a model's tool calls in a session.

Supports the chat completions form (`{"type": "function", "function": {...}}`, `role: tool` messages) and the flat responses
form (`{"type": "function", "name": ...}`, `function_call_output` items). No vendor SDK is needed. MCP names that these
interfaces do not allow are encoded reversibly.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from taskgate.client.errors import ClientError
from taskgate.client.results import Tool, ToolResult
from taskgate.client.session import Session

LONGEST_NAME = 64
_PLAIN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ENCODED, _SHORTENED = "mcp_b64_", "mcp_cut_"
_EXECUTED = {
    "no": "The tool was not run.",
    "maybe": "The tool may have run: check before calling it again.",
    "yes": "The tool was run.",
}


def safe_name(name: str) -> str:
    """Return a unique name that every OpenAI-style interface accepts."""
    if _PLAIN.fullmatch(name) and not name.startswith((_ENCODED, _SHORTENED)):
        return name
    encoded = _ENCODED + base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
    if len(encoded) <= LONGEST_NAME:
        return encoded
    readable = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:24]
    return f"{_SHORTENED}{readable}_{hashlib.sha256(name.encode()).hexdigest()[:24]}"


def original_name(safe: str, known: Iterable[str] = ()) -> str:
    """Return the MCP name for a safe name. Names that were too long to encode are looked up in `known`."""
    if safe.startswith(_ENCODED):
        text = safe.removeprefix(_ENCODED)
        try:
            name = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        except ValueError:
            return safe
        return name if safe_name(name) == safe else safe
    if safe.startswith(_SHORTENED):
        return next((name for name in known if safe_name(name) == safe), safe)
    return safe


def definitions(tools: Sequence[Tool], *, flat: bool = False) -> list[dict[str, Any]]:
    """Return tool definitions for a model, without tools that are only for apps. `flat` selects the responses form."""
    made = []
    for tool in (tool for tool in tools if tool.is_for_model):
        schema = dict(tool.input_schema) or {"type": "object"}
        schema.setdefault("properties", {})
        function = {"name": safe_name(tool.name), "description": tool.description, "parameters": schema}
        made.append({"type": "function", **function} if flat else {"type": "function", "function": function})
    return made


async def dispatch(
    session: Session, tool_calls: Sequence[Mapping[str, Any]], tools: Sequence[Tool] = ()
) -> list[dict[str, Any]]:
    """Run a model's tool calls concurrently, and return one message for each, in order.

    Errors (invalid JSON, an unknown tool, an error of the server) become text for the model.
    """
    known = [tool.name for tool in tools]
    return list(await asyncio.gather(*(_run(session, call, known) for call in tool_calls)))


def content_text(result: ToolResult) -> str:
    """Return a tool result as text for a model: its text, else its structured content, else the types of its blocks."""
    if result.text:
        return result.text
    if result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    kinds = ", ".join(str(block.get("type")) for block in result.content)
    return f"[{kinds}]" if kinds else "[no content]"


async def _run(session: Session, call: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else call
    try:
        arguments = _arguments(function.get("arguments"))
        result = await session.call_tool(original_name(str(function.get("name")), known), arguments)
        text = ("Error: " if result.is_error else "") + content_text(result)
    except ClientError as error:
        text = f"Error: {error} {_EXECUTED[error.executed]}"
    except ValueError as error:
        text = f"Error: {error}"
    if "call_id" in call:
        return {"type": "function_call_output", "call_id": call["call_id"], "output": text}
    return {"role": "tool", "tool_call_id": call.get("id"), "content": text}


def _arguments(given: Any) -> dict[str, Any]:
    if given is None or given == "":
        return {}
    arguments = json.loads(given) if isinstance(given, str) else given
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a tool call must be a JSON object")
    return arguments
