"""Models behind the Anthropic messages interface. Which model is used is decided before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from taskgate.core.sampling.answer import END_TURN, MAX_TOKENS, STOP_SEQUENCE, TOOL_USE, SamplingAnswer
from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.core.sampling.request import Audio, Block, Image, SamplingRequest, Text, ToolResult, ToolUse
from taskgate.core.settings.providers import Model
from taskgate.providers.account import Account
from taskgate.providers.json_exchange import invalid_reply, post_json

ANTHROPIC_URL = "https://api.anthropic.com"
API_VERSION = "2023-06-01"

_STOP_REASONS = {
    "end_turn": END_TURN,
    "max_tokens": MAX_TOKENS,
    "stop_sequence": STOP_SEQUENCE,
    "tool_use": TOOL_USE,
    "refusal": "refusal",
}
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


class AnthropicProvider(Account, frozen=True):
    """One account with Anthropic."""

    base_url: str = ANTHROPIC_URL

    async def create_message(self, request: SamplingRequest, model: Model) -> SamplingAnswer:
        headers = {"x-api-key": self.key, "anthropic-version": API_VERSION}
        url = f"{self.base_url.rstrip('/')}/v1/messages"
        answer = await post_json(self.client, url, headers, _body(request, model), self.timeout_s)
        return _answer(answer, model)


def _body(request: SamplingRequest, model: Model) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model.name,
        "max_tokens": min(request.max_tokens, model.max_tokens or request.max_tokens),
        "messages": [{"role": m.role, "content": [_block(block) for block in m.content]} for m in request.messages],
    }
    if request.system:
        body["system"] = request.system
    if request.temperature is not None:
        body["temperature"] = min(request.temperature, 1.0)  # MCP allows up to 2, this interface up to 1
    if request.stop_sequences:
        body["stop_sequences"] = list(request.stop_sequences)
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.input_schema)}
            for tool in request.tools
        ]
        body["tool_choice"] = {"type": _CHOICES[request.tool_choice]}
    return body


def _block(block: Block) -> dict[str, Any]:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Image():
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            return {"type": "image", "source": source}
        case Audio():
            raise SamplingError(SamplingProblem.INVALID_REQUEST, "This model does not accept audio.")
        case ToolUse():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": dict(block.input)}
        case ToolResult():
            content = [_block(part) for part in block.content]
            return {
                "type": "tool_result",
                "tool_use_id": block.tool_use_id,
                "content": content,
                "is_error": block.is_error,
            }
        case _:
            assert_never(block)


def _answer(answer: Mapping[str, Any], model: Model) -> SamplingAnswer:
    try:
        usage = answer.get("usage") or {}
        content = tuple(found for block in answer["content"] if (found := _content(block)) is not None)
        reason = _STOP_REASONS.get(answer.get("stop_reason"), END_TURN)  # type: ignore[arg-type]
        return SamplingAnswer(
            content=content,
            model=str(answer.get("model") or model.name),
            stop_reason=reason,
            tokens_in=int(usage.get("input_tokens") or 0),
            tokens_out=int(usage.get("output_tokens") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise invalid_reply() from None


def _content(block: Mapping[str, Any]) -> Text | ToolUse | None:
    if block["type"] == "text":
        return Text(str(block["text"]))
    if block["type"] == "tool_use":
        if not isinstance(block["input"], dict):
            raise TypeError
        return ToolUse(str(block["id"]), str(block["name"]), block["input"])
    return None  # thinking and similar blocks are not part of the answer
