"""Parse the params of `sampling/createMessage`.

Lenient where older servers differ (a plain string as content, a `system` role, a boolean `includeContext`, which is
ignored). Strict where a provider would fail later with an error of its own: pairing of tool uses and results, roles,
ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.core.sampling.request import (
    Audio,
    Block,
    Image,
    Preferences,
    Role,
    SamplingMessage,
    SamplingRequest,
    Text,
    Tool,
    ToolResult,
    ToolUse,
)

MAX_MESSAGES = 1000
MAX_TOKENS = 1_000_000


def read_request(params: Mapping[str, Any], default_max_tokens: int = 1024) -> SamplingRequest:
    """Parse the params of `sampling/createMessage`. Raises SamplingError."""
    listed = params.get("messages")
    if not isinstance(listed, list) or not listed or len(listed) > MAX_MESSAGES:
        raise _refusal(f"messages must be an array of 1 to {MAX_MESSAGES} messages")
    parsed = [_message(at, message) for at, message in enumerate(listed)]
    system = [_string(params, "systemPrompt", "")]
    system += [
        "\n".join(b.text for b in content if isinstance(b, Text)) for role, content in parsed if role == "system"
    ]
    messages = tuple(SamplingMessage(role, content) for role, content in parsed if role != "system")
    if not messages:
        raise _refusal("there is no message of a user or an assistant")
    _check_pairing(messages)
    return SamplingRequest(
        messages=messages,
        max_tokens=_whole(params, "maxTokens", default_max_tokens, 1, MAX_TOKENS),
        system="\n\n".join(text for text in system if text),
        temperature=_number(params, "temperature", 0.0, 2.0),
        stop_sequences=_strings(params, "stopSequences"),
        tools=_tools(params.get("tools")),
        tool_choice=_tool_choice(params.get("toolChoice")),
        preferences=read_preferences(params.get("modelPreferences")),
    )


def read_preferences(given: Any) -> Preferences:
    """Parse `modelPreferences`. Raises SamplingError."""
    if given is None:
        return Preferences()
    if not isinstance(given, Mapping):
        raise SamplingError(SamplingProblem.INVALID_PREFERENCES, "modelPreferences must be an object.")
    hints = given.get("hints") or []
    if not isinstance(hints, list) or len(hints) > 32 or not all(isinstance(hint, Mapping) for hint in hints):
        raise SamplingError(SamplingProblem.INVALID_PREFERENCES, "modelPreferences.hints must be an array of objects.")
    names = tuple(hint["name"] for hint in hints if isinstance(hint.get("name"), str) and hint["name"])
    return Preferences(
        names, *(_priority(given, key) for key in ("costPriority", "speedPriority", "intelligencePriority"))
    )


def _priority(given: Mapping[str, Any], key: str) -> float:
    value = given.get(key)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SamplingError(
            SamplingProblem.INVALID_PREFERENCES, f"modelPreferences.{key} must be a number from 0 to 1."
        )
    return float(value)


def _message(at: int, message: Any) -> tuple[Role | Literal["system"], tuple[Block, ...]]:
    if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant", "system"):
        raise _refusal(f"messages[{at}] needs the role user or assistant")
    content = message.get("content")
    blocks = content if isinstance(content, list) else [content]
    if not blocks:
        raise _refusal(f"messages[{at}] has no content")
    return message["role"], tuple(_block(f"messages[{at}]", block) for block in blocks)


def _block(where: str, block: Any) -> Block:
    if isinstance(block, Mapping) and block.get("type") == "tool_use":
        arguments = block.get("input")
        return ToolUse(
            _string(block, "id"), _string(block, "name"), arguments if isinstance(arguments, Mapping) else {}
        )
    if isinstance(block, Mapping) and block.get("type") == "tool_result":
        content = block.get("content") or []
        inner = tuple(_plain_block(where, part) for part in (content if isinstance(content, list) else [content]))
        return ToolResult(_string(block, "toolUseId"), inner, block.get("isError") is True)
    return _plain_block(where, block)


def _plain_block(where: str, block: Any) -> Text | Image | Audio:
    if isinstance(block, str):
        return Text(block)
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text":
        return Text(_string(block, "text"))
    if kind == "image":
        return Image(_string(block, "data"), _string(block, "mimeType"))
    if kind == "audio":
        return Audio(_string(block, "data"), _string(block, "mimeType"))
    resource = block.get("resource") if kind == "resource" else None
    if isinstance(resource, Mapping) and isinstance(resource.get("text"), str):
        return Text(resource["text"])
    if kind == "resource_link":
        return Text(_string(block, "uri"))
    raise _refusal(f"{where} has content of an unsupported type")


def _check_pairing(messages: Sequence[SamplingMessage]) -> None:
    """Results are alone in a user message and answer exactly the tool uses before them (client/sampling, tools)."""
    open_uses: set[str] = set()
    for message in messages:
        results = [block for block in message.content if isinstance(block, ToolResult)]
        uses = [block.id for block in message.content if isinstance(block, ToolUse)]
        if results and (message.role != "user" or len(results) != len(message.content)):
            raise _refusal("tool results may only be in a user message without other content")
        if sorted(result.tool_use_id for result in results) != sorted(open_uses):
            raise _refusal("every tool use must be answered by a tool result in the next message, and by nothing else")
        if uses and message.role != "assistant":
            raise _refusal("a tool use may only be in a message of the assistant")
        if len(set(uses)) != len(uses):
            raise _refusal("two tool uses of one message have the same id")
        open_uses = set(uses)
    if open_uses:
        raise _refusal("the last tool use is not answered")


def _tools(given: Any) -> tuple[Tool, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > 500:
        raise _refusal("tools must be an array of at most 500 tools")
    found: list[Tool] = []
    for tool in given:
        if not isinstance(tool, Mapping):
            raise _refusal("tools must hold objects")
        schema = tool.get("inputSchema")
        schema = schema if isinstance(schema, Mapping) else {"type": "object"}
        found.append(Tool(_string(tool, "name"), _string(tool, "description", ""), schema))
    return tuple(found)


def _tool_choice(given: Any) -> Literal["auto", "required", "none"]:
    mode = given.get("mode", "auto") if isinstance(given, Mapping) else "auto" if given is None else given
    match mode:
        case "auto" | "required" | "none":
            return mode
        case _:
            raise _refusal("toolChoice.mode must be auto, required or none")


def _string(holder: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = holder.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise _refusal(f"{key} must be a string")
    return value


def _strings(holder: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = holder.get(key) or []
    if not isinstance(value, list) or len(value) > 64 or not all(isinstance(entry, str) and entry for entry in value):
        raise _refusal(f"{key} must be an array of at most 64 strings")
    return tuple(value)


def _whole(holder: Mapping[str, Any], key: str, default: int, low: int, high: int) -> int:
    value = holder.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or not low <= value <= high:
        raise _refusal(f"{key} must be a whole number from {low} to {high}")
    return int(value)


def _number(holder: Mapping[str, Any], key: str, low: float, high: float) -> float | None:
    value = holder.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _refusal(f"{key} must be a number from {low:g} to {high:g}")
    return float(value)


def _refusal(problem: str) -> SamplingError:
    return SamplingError(SamplingProblem.INVALID_REQUEST, f"This sampling request cannot be used: {problem}.")
