"""Models behind the OpenAI chat completions interface, which many providers and local servers offer.

Which model is used is decided before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, assert_never

from taskgate.core.sampling.answer import END_TURN, MAX_TOKENS, TOOL_USE, SamplingAnswer
from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.core.sampling.request import (
    Audio,
    Block,
    Image,
    SamplingMessage,
    SamplingRequest,
    Text,
    ToolResult,
    ToolUse,
)
from taskgate.core.settings.providers import Model
from taskgate.providers.account import Account
from taskgate.providers.json_exchange import invalid_reply, post_json

OPENAI_URL = "https://api.openai.com/v1"
MAX_STOP_SEQUENCES = 4

_STOP_REASONS = {"stop": END_TURN, "length": MAX_TOKENS, "tool_calls": TOOL_USE, "content_filter": "contentFilter"}
_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}


class OpenAiProvider(Account, frozen=True):
    """One account with an OpenAI-compatible service."""

    base_url: str = OPENAI_URL

    async def create_message(self, request: SamplingRequest, model: Model) -> SamplingAnswer:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        answer = await post_json(self.client, url, headers, self._body(request, model), self.timeout_s)
        return _answer(answer, model)

    def _body(self, request: SamplingRequest, model: Model) -> dict[str, Any]:
        if len(request.stop_sequences) > MAX_STOP_SEQUENCES:
            raise SamplingError(
                SamplingProblem.INVALID_REQUEST, f"This model accepts at most {MAX_STOP_SEQUENCES} stop sequences."
            )
        messages = [{"role": "system", "content": request.system}] if request.system else []
        for message in request.messages:
            messages += _messages(message)
        # OpenAI's own service accepts only the newer name, most others only the older one.
        limit = "max_completion_tokens" if self.base_url.startswith(OPENAI_URL) else "max_tokens"
        body: dict[str, Any] = {
            "model": model.name,
            "messages": messages,
            limit: min(request.max_tokens, model.max_tokens or request.max_tokens),
        }
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.stop_sequences:
            body["stop"] = list(request.stop_sequences)
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": dict(t.input_schema)},
                }
                for t in request.tools
            ]
            body["tool_choice"] = request.tool_choice
        return body


def _messages(message: SamplingMessage) -> list[dict[str, Any]]:
    results = [block for block in message.content if isinstance(block, ToolResult)]
    if results:
        return [
            {"role": "tool", "tool_call_id": result.tool_use_id, "content": _result_text(result)} for result in results
        ]
    if message.role == "user":
        return [{"role": "user", "content": [_part(block) for block in message.content]}]
    text = "".join(block.text for block in message.content if isinstance(block, Text))
    calls = [_call(block) for block in message.content if isinstance(block, ToolUse)]
    reply: dict[str, Any] = {"role": "assistant", "content": text or None}
    return [{**reply, "tool_calls": calls} if calls else reply]


def _call(block: ToolUse) -> dict[str, Any]:
    return {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name, "arguments": json.dumps(dict(block.input))},
    }


def _result_text(result: ToolResult) -> str:
    # A tool result is text in this interface; other content is replaced by its type.
    parts = [part.text if isinstance(part, Text) else f"[{part.mime_type}]" for part in result.content]
    return ("Error: " if result.is_error else "") + "\n".join(parts)


def _part(block: Block) -> dict[str, Any]:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Image():
            return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}
        case Audio():
            audio_format = _AUDIO_FORMATS.get(block.mime_type)
            if audio_format is None:
                raise SamplingError(SamplingProblem.INVALID_REQUEST, "This model accepts audio only as WAV or MP3.")
            return {"type": "input_audio", "input_audio": {"data": block.data, "format": audio_format}}
        case ToolUse() | ToolResult():
            raise SamplingError(SamplingProblem.INVALID_REQUEST, "A user message must not contain a tool use.")
        case _:
            assert_never(block)


def _answer(answer: Mapping[str, Any], model: Model) -> SamplingAnswer:
    try:
        choice = answer["choices"][0]
        message, usage = choice["message"], answer.get("usage") or {}
        text = message.get("content") or message.get("refusal")
        content: list[Text | ToolUse] = [Text(text)] if isinstance(text, str) and text else []
        content += [_tool_use(call) for call in message.get("tool_calls") or ()]
        reason = _STOP_REASONS.get(choice.get("finish_reason"), END_TURN)
        return SamplingAnswer(
            content=tuple(content),
            model=str(answer.get("model") or model.name),
            stop_reason=reason,
            tokens_in=int(usage.get("prompt_tokens") or 0),
            tokens_out=int(usage.get("completion_tokens") or 0),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise invalid_reply() from None


def _tool_use(call: Mapping[str, Any]) -> ToolUse:
    arguments = json.loads(call["function"]["arguments"] or "{}")
    if not isinstance(arguments, dict):
        raise TypeError
    return ToolUse(str(call["id"]), str(call["function"]["name"]), arguments)
