"""Models' vendors: what an account with any of them is, and how each is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

import httpx2
import msgspec

from taskgate.core.errors import Executed
from taskgate.core.sampling.answer import END_TURN, MAX_TOKENS, STOP_SEQUENCE, TOOL_USE, SamplingAnswer
from taskgate.core.sampling.choose_model import Model
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
from taskgate.core.sampling.spending import Estimate, estimate

# What an account with any vendor is: its models, what they cost, and where and with which key they are asked.
#
# One HTTP exchange with a vendor: bounded in time and size, and every failure in our own words.
#
# A vendor's message may quote prompts or keys, so it is never passed on; only the status and the kind of error count.
# No retries: whether to try again is for whoever asked. A connection that broke after the request had left may have
# cost money, and says so.


@dataclass(frozen=True, slots=True)
class Account:
    """One account. The HTTP client is shared and belongs to whoever made it."""

    name: str
    models: tuple[Model, ...]
    client: httpx2.AsyncClient = field(repr=False)
    key: str = field(repr=False)
    base_url: str
    timeout_s: float = 60.0

    def available_models(self) -> tuple[Model, ...]:
        return self.models

    def estimate_cost(self, request: SamplingRequest, model: Model) -> Estimate:
        return estimate(request, model)

    async def close(self) -> None:
        """Nothing of its own is open."""


MAX_ANSWER_BYTES = 16 * 1024 * 1024
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


async def post_json(
    client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], body: Mapping[str, Any], timeout_s: float
) -> dict[str, Any]:
    """Send a JSON body and give back the JSON object of a good answer. Raises SamplingError."""
    try:
        async with asyncio.timeout(timeout_s):
            status, retry_after, raw = await _exchange(client, url, headers, msgspec.json.encode(body))
    except (TimeoutError, httpx2.TimeoutException) as problem:
        sent = Executed.NO if isinstance(problem, _NOT_SENT) else Executed.MAYBE
        raise SamplingError(SamplingProblem.TIMEOUT, "The model did not answer in time.", executed=sent) from problem
    except httpx2.HTTPError as problem:
        sent = Executed.NO if isinstance(problem, _NOT_SENT) else Executed.MAYBE
        raise SamplingError(
            SamplingProblem.FAILED, "The model's provider cannot be reached.", executed=sent
        ) from problem
    answer = _object(raw)
    if status == 200 and answer is not None:
        return answer
    raise _failure(status, answer or {}, retry_after)


async def _exchange(
    client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], body: bytes
) -> tuple[int, str | None, bytes]:
    sent = {"content-type": "application/json", "accept": "application/json", **headers}
    async with client.stream("POST", url, headers=sent, content=body) as response:
        received = bytearray()
        async for chunk in response.aiter_bytes():
            received += chunk
            if len(received) > MAX_ANSWER_BYTES:
                raise SamplingError(SamplingProblem.FAILED, "The model's answer is too large.", executed=Executed.YES)
        return response.status_code, response.headers.get("retry-after"), bytes(received)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _failure(status: int, answer: Mapping[str, Any], retry_after: str | None) -> SamplingError:
    error = answer.get("error")
    kinds = {error.get("type"), error.get("code")} if isinstance(error, Mapping) else set()
    if status == 200:
        return unusable()
    if status in (401, 403):
        return SamplingError(SamplingProblem.FAILED, "The provider does not accept the gateway's key.")
    if status == 404 or kinds & {"model_not_found", "not_found_error"}:
        return SamplingError(SamplingProblem.MODEL_NOT_AVAILABLE, "The provider does not have the chosen model.")
    if status == 429 and "insufficient_quota" not in kinds:
        return SamplingError(
            SamplingProblem.RATE_LIMITED,
            "The provider is asked too often. Try again later.",
            retry_after_s=_seconds(retry_after),
        )
    if status == 429:
        return SamplingError(SamplingProblem.FAILED, "The gateway's account with the provider has no credit left.")
    if status == 408 or status == 504:
        return SamplingError(SamplingProblem.TIMEOUT, "The model did not answer in time.", executed=Executed.MAYBE)
    if status >= 500:
        return SamplingError(
            SamplingProblem.FAILED,
            "The provider is in trouble. Try again later.",
            retry_after_s=_seconds(retry_after),
            executed=Executed.MAYBE,
        )
    return SamplingError(SamplingProblem.FAILED, "The provider refused the request.")


def unusable() -> SamplingError:
    """The vendor answered, and nothing can be made of it."""
    return SamplingError(SamplingProblem.FAILED, "The provider's answer cannot be understood.", executed=Executed.YES)


def _seconds(retry_after: str | None) -> float | None:
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds <= 86_400 else None


# Asks a model through the Anthropic messages interface.
#
# It knows that form and nothing else: which model to ask, and whether to ask at all, is decided before.

ANTHROPIC_URL = "https://api.anthropic.com"
API_VERSION = "2023-06-01"

_ANTHROPIC_FINISHED = {
    "end_turn": END_TURN,
    "max_tokens": MAX_TOKENS,
    "stop_sequence": STOP_SEQUENCE,
    "tool_use": TOOL_USE,
    "refusal": "refusal",
}
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


@dataclass(frozen=True, slots=True)
class AnthropicProvider(Account):
    """One account with Anthropic."""

    base_url: str = ANTHROPIC_URL

    async def create_message(self, request: SamplingRequest, model: Model) -> SamplingAnswer:
        headers = {"x-api-key": self.key, "anthropic-version": API_VERSION}
        url = f"{self.base_url.rstrip('/')}/v1/messages"
        answer = await post_json(self.client, url, headers, _body(request, model), self.timeout_s)
        return _anthropic_answer(answer, model)


def _body(request: SamplingRequest, model: Model) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model.name,
        "max_tokens": min(request.max_tokens, model.max_tokens or request.max_tokens),
        "messages": [{"role": m.role, "content": [_block(block) for block in m.content]} for m in request.messages],
    }
    if request.system:
        body["system"] = request.system
    if request.temperature is not None:
        body["temperature"] = min(request.temperature, 1.0)  # MCP allows up to 2, this vendor up to 1
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
            raise SamplingError(SamplingProblem.INVALID_REQUEST, "This model takes no sound.")
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


def _anthropic_answer(answer: Mapping[str, Any], model: Model) -> SamplingAnswer:
    try:
        usage = answer.get("usage") or {}
        content = tuple(found for block in answer["content"] if (found := _content(block)) is not None)
        reason = _ANTHROPIC_FINISHED.get(answer.get("stop_reason"), END_TURN)  # type: ignore[arg-type]
        tokens = int(usage.get("input_tokens") or 0), int(usage.get("output_tokens") or 0)
        return SamplingAnswer(content, str(answer.get("model") or model.name), reason, *tokens)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise unusable() from None


def _content(block: Mapping[str, Any]) -> Text | ToolUse | None:
    if block["type"] == "text":
        return Text(str(block["text"]))
    if block["type"] == "tool_use":
        if not isinstance(block["input"], dict):
            raise TypeError
        return ToolUse(str(block["id"]), str(block["name"]), block["input"])
    return None  # a model's thinking and the like are not part of its answer


# Asks a model through the OpenAI chat completions interface, which many vendors and local servers speak.
#
# It knows that form and nothing else: which model to ask, and whether to ask at all, is decided before.

OPENAI_URL = "https://api.openai.com/v1"
MAX_STOP_SEQUENCES = 4

_OPENAI_FINISHED = {"stop": END_TURN, "length": MAX_TOKENS, "tool_calls": TOOL_USE, "content_filter": "contentFilter"}
_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


@dataclass(frozen=True, slots=True)
class OpenAiProvider(Account):
    """One account with an OpenAI-compatible service."""

    base_url: str = OPENAI_URL

    async def create_message(self, request: SamplingRequest, model: Model) -> SamplingAnswer:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        answer = await post_json(self.client, url, headers, self._body(request, model), self.timeout_s)
        return _openai_answer(answer, model)

    def _body(self, request: SamplingRequest, model: Model) -> dict[str, Any]:
        if len(request.stop_sequences) > MAX_STOP_SEQUENCES:
            raise SamplingError(
                SamplingProblem.INVALID_REQUEST, f"This model takes at most {MAX_STOP_SEQUENCES} stop sequences."
            )
        messages = [{"role": "system", "content": request.system}] if request.system else []
        for message in request.messages:
            messages += _messages(message)
        # The vendor's own service knows only the newer word, most others only the older one.
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


def _openai_answer(answer: Mapping[str, Any], model: Model) -> SamplingAnswer:
    try:
        choice = answer["choices"][0]
        message, usage = choice["message"], answer.get("usage") or {}
        said = message.get("content") or message.get("refusal")
        content: list[Text | ToolUse] = [Text(said)] if isinstance(said, str) and said else []
        content += [_tool_use(call) for call in message.get("tool_calls") or ()]
        reason = _OPENAI_FINISHED.get(choice.get("finish_reason"), END_TURN)
        tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        return SamplingAnswer(tuple(content), str(answer.get("model") or model.name), reason, *tokens)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise unusable() from None


def _tool_use(call: Mapping[str, Any]) -> ToolUse:
    arguments = json.loads(call["function"]["arguments"] or "{}")
    if not isinstance(arguments, dict):
        raise TypeError
    return ToolUse(str(call["id"]), str(call["function"]["name"]), arguments)
