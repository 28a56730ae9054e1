"""Asks a model through the OpenAI chat completions interface, which many vendors and local servers speak.

It knows that form and nothing else: which model to ask, and whether to ask at all, is decided before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from taskgate.core.sampling.choose_model import END_TURN, MAX_TOKENS, TOOL_USE, Model, SamplingAnswer
from taskgate.core.sampling.read_request import (
    Audio,
    Block,
    Image,
    Message,
    SamplingError,
    SamplingProblem,
    SamplingRequest,
    Text,
    ToolResult,
    ToolUse,
)
from taskgate.providers.exchange import Account, post_json, unusable

DEFAULT_BASE_URL = "https://api.openai.com/v1"
MAX_STOP_SEQUENCES = 4

_FINISHED = {"stop": END_TURN, "length": MAX_TOKENS, "tool_calls": TOOL_USE, "content_filter": "contentFilter"}
_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


@dataclass(frozen=True, slots=True)
class OpenAiProvider(Account):
    """One account with an OpenAI-compatible service."""

    base_url: str = DEFAULT_BASE_URL

    async def create_message(self, request: SamplingRequest, model: Model) -> SamplingAnswer:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        answer = await post_json(self.client, url, headers, self._body(request, model), self.timeout_s)
        return _answer(answer, model)

    def _body(self, request: SamplingRequest, model: Model) -> dict[str, Any]:
        if len(request.stop_sequences) > MAX_STOP_SEQUENCES:
            raise SamplingError(
                SamplingProblem.INVALID_REQUEST, f"This model takes at most {MAX_STOP_SEQUENCES} stop sequences."
            )
        messages = [{"role": "system", "content": request.system}] if request.system else []
        for message in request.messages:
            messages += _messages(message)
        # The vendor's own service knows only the newer word, most others only the older one.
        limit = "max_completion_tokens" if self.base_url.startswith(DEFAULT_BASE_URL) else "max_tokens"
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


def _messages(message: Message) -> list[dict[str, Any]]:
    results = [block for block in message.content if isinstance(block, ToolResult)]
    if results:
        return [{"role": "tool", "tool_call_id": result.tool_use_id, "content": _told(result)} for result in results]
    if message.role == "user":
        return [{"role": "user", "content": [_part(block) for block in message.content]}]
    said = "".join(block.text for block in message.content if isinstance(block, Text))
    calls = [_call(block) for block in message.content if isinstance(block, ToolUse)]
    spoken: dict[str, Any] = {"role": "assistant", "content": said or None}
    return [{**spoken, "tool_calls": calls} if calls else spoken]


def _call(block: ToolUse) -> dict[str, Any]:
    return {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name, "arguments": json.dumps(dict(block.input))},
    }


def _told(result: ToolResult) -> str:
    # A tool's message is text in this interface; what cannot be text is at least named.
    said = [part.text if isinstance(part, Text) else f"[{part.mime_type}]" for part in result.content]
    return ("Error: " if result.is_error else "") + "\n".join(said)


def _part(block: Block) -> dict[str, Any]:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Image():
            return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}
        case Audio():
            sound = _SOUNDS.get(block.mime_type)
            if sound is None:
                raise SamplingError(SamplingProblem.INVALID_REQUEST, "This model takes sound as WAV or MP3 only.")
            return {"type": "input_audio", "input_audio": {"data": block.data, "format": sound}}
        case ToolUse() | ToolResult():
            raise SamplingError(SamplingProblem.INVALID_REQUEST, "A user message may not hold a tool use.")
        case _:
            assert_never(block)


def _answer(answer: Mapping[str, Any], model: Model) -> SamplingAnswer:
    try:
        choice = answer["choices"][0]
        message, usage = choice["message"], answer.get("usage") or {}
        said = message.get("content") or message.get("refusal")
        content: list[Text | ToolUse] = [Text(said)] if isinstance(said, str) and said else []
        content += [_tool_use(call) for call in message.get("tool_calls") or ()]
        reason = _FINISHED.get(choice.get("finish_reason"), END_TURN)
        tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        return SamplingAnswer(tuple(content), str(answer.get("model") or model.name), reason, *tokens)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise unusable() from None


def _tool_use(call: Mapping[str, Any]) -> ToolUse:
    arguments = json.loads(call["function"]["arguments"] or "{}")
    if not isinstance(arguments, dict):
        raise TypeError
    return ToolUse(str(call["id"]), str(call["function"]["name"]), arguments)
