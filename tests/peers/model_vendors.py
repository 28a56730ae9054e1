"""Test servers for two vendors of language models, in one process: `/openai/v1/chat/completions` and
`/anthropic/v1/messages`.

They hold callers to the documented form of each interface and answer violations as the vendor does. What else they do
depends on the model's name: `echo` answers, `tooly` asks for a tool, `cut` stops at the limit, `limited`, `quota`,
`down`, `overloaded`, `slow`, `garbage`, `odd`, `huge`, `hangup` and `gone` fail in their ways. `GET /seen` gives the
last body that was accepted.

    python model_vendors.py PORT
"""

from __future__ import annotations

import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "test-key-0123456789"
SEEN: dict[str, Any] = {}


class BadRequest(Exception):
    """The request breaks the vendor's documented form."""


def need(condition: bool, problem: str) -> None:
    if not condition:
        raise BadRequest(problem)


def check_openai(body: dict[str, Any]) -> None:
    known = {"model", "messages", "max_tokens", "max_completion_tokens", "temperature", "stop", "tools", "tool_choice"}
    need(set(body) <= known, f"unknown fields {set(body) - known}")
    need(0 <= body.get("temperature", 1) <= 2, "temperature out of range")
    need(len(body.get("stop", [])) <= 4, "too many stop sequences")
    need(isinstance(body.get("max_tokens", body.get("max_completion_tokens")), int), "no limit")
    need("tool_choice" not in body or "tools" in body, "tool_choice without tools")
    need(body.get("tool_choice", "auto") in ("auto", "required", "none"), "tool_choice")
    for tool in body.get("tools", []):
        need(tool["type"] == "function" and isinstance(tool["function"]["parameters"], dict), "tool")
    waiting: set[str] = set()
    for message in body["messages"]:
        role = message["role"]
        need(role in ("system", "user", "assistant", "tool"), f"role {role}")
        if role == "tool":
            need(message["tool_call_id"] in waiting, "a tool message must follow its tool call")
            need(isinstance(message["content"], str), "tool content must be text")
            waiting.discard(message["tool_call_id"])
            continue
        need(not waiting, "tool calls must be answered first")
        if role == "assistant":
            need(message["content"] is not None or "tool_calls" in message, "empty assistant message")
            for call in message.get("tool_calls", []):
                need(isinstance(json.loads(call["function"]["arguments"]), dict), "arguments must be JSON text")
                waiting.add(call["id"])
        for part in message["content"] if isinstance(message["content"], list) else []:
            check_openai_part(part)


def check_openai_part(part: dict[str, Any]) -> None:
    kind = part["type"]
    if kind == "image_url":
        head, _, data = part["image_url"]["url"].partition(";base64,")
        need(head.startswith("data:image/"), "image url")
        base64.b64decode(data, validate=True)
    elif kind == "input_audio":
        need(part["input_audio"]["format"] in ("wav", "mp3"), "audio format")
    else:
        need(kind == "text" and isinstance(part["text"], str), f"part {kind}")


def check_anthropic(body: dict[str, Any]) -> None:
    known = {"model", "messages", "max_tokens", "system", "temperature", "stop_sequences", "tools", "tool_choice"}
    need(set(body) <= known, f"unknown fields {set(body) - known}")
    need(isinstance(body.get("max_tokens"), int) and body["max_tokens"] >= 1, "max_tokens: Field required")
    need(0 <= body.get("temperature", 1) <= 1, "temperature: range: 0..1")
    need("tool_choice" not in body or "tools" in body, "tool_choice may only be specified while providing tools")
    need(body.get("tool_choice", {}).get("type", "auto") in ("auto", "any", "none"), "tool_choice")
    for tool in body.get("tools", []):
        need(isinstance(tool["input_schema"], dict), "tools.input_schema")
    need(body["messages"][0]["role"] == "user", "messages: first message must use the user role")
    waiting: set[str] = set()
    for message in body["messages"]:
        need(message["role"] in ("user", "assistant"), "messages.role")
        answered = {b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"}
        need(answered == waiting, "tool_use ids were found without tool_result blocks immediately after")
        waiting = {b["id"] for b in message["content"] if b["type"] == "tool_use"}
        for block in message["content"]:
            check_anthropic_block(block)


def check_anthropic_block(block: dict[str, Any]) -> None:
    kind = block["type"]
    if kind == "image":
        need(block["source"]["type"] == "base64", "image source")
        need(block["source"]["media_type"] in ("image/png", "image/jpeg", "image/gif", "image/webp"), "media_type")
        base64.b64decode(block["source"]["data"], validate=True)
    elif kind == "tool_result":
        for inner in block["content"]:
            check_anthropic_block(inner)
    elif kind == "tool_use":
        need(isinstance(block["input"], dict), "tool_use.input")
    else:
        need(kind == "text" and block["text"] != "", "text content blocks must be non-empty")


def openai_answer(body: dict[str, Any]) -> dict[str, Any]:
    model = body["model"]
    message: dict[str, Any] = {"role": "assistant", "content": f"You said {len(body['messages'])} things."}
    reason = {"cut": "length", "filtered": "content_filter"}.get(model, "stop")
    if model == "tooly":
        function = {"name": "look", "arguments": '{"q": "weather"}'}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        }
        reason = "tool_calls"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": f"{model}-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def anthropic_answer(body: dict[str, Any]) -> dict[str, Any]:
    model = body["model"]
    content: list[dict[str, Any]] = [{"type": "text", "text": f"You said {len(body['messages'])} things."}]
    reason = {"cut": "max_tokens", "stopped": "stop_sequence", "filtered": "refusal"}.get(model, "end_turn")
    if model == "tooly":
        content = [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": "weather"}},
        ]
        reason = "tool_use"
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": f"{model}-2026",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }


class Vendors(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(200, SEEN)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        self.openai = self.path.startswith("/openai/")
        if self.path not in ("/openai/v1/chat/completions", "/anthropic/v1/messages"):
            return self.fail(404, "not_found_error", "no such path")
        given = self.headers.get("authorization") if self.openai else self.headers.get("x-api-key")
        if given != (f"Bearer {KEY}" if self.openai else KEY):
            return self.fail(401, "authentication_error", f"Incorrect API key provided: {given}")
        if not self.openai and self.headers.get("anthropic-version") != "2023-06-01":
            return self.fail(400, "invalid_request_error", "anthropic-version: header is required")
        body = json.loads(raw)
        try:
            (check_openai if self.openai else check_anthropic)(body)
        except (BadRequest, KeyError, TypeError, ValueError) as problem:
            return self.fail(400, "invalid_request_error", str(problem))
        SEEN.clear()
        SEEN.update(body)
        return self.behave(body)

    def behave(self, body: dict[str, Any]) -> None:
        match body["model"]:
            case "limited":
                self.fail(429, "rate_limit_error", "slow down", {"retry-after": "7"})
            case "limited-vaguely":
                self.fail(429, "rate_limit_error", "slow down", {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})
            case "quota":
                self.fail(429, "insufficient_quota", "you have no credit left")
            case "down":
                self.fail(503, "api_error", "secret details of an outage", {"retry-after": "3"})
            case "overloaded":
                self.fail(529, "overloaded_error", "overloaded")
            case "late":
                self.fail(504, "timeout_error", "gave up")
            case "forbidden":
                self.fail(403, "permission_error", "no")
            case "too-long":
                self.fail(413, "request_too_large", "too large")
            case "gone":
                self.fail(404, "not_found_error", "model: gone", code="model_not_found")
            case "slow":
                self.rfile.read(1)  # until the caller gives up and closes
            case "hangup":
                self.close_connection = True
            case "garbage":
                self.reply(200, b"<html>not json</html>")
            case "odd":
                self.answer(200, {"surprise": True})
            case "odd-tool":
                self.answer(200, {"choices": [{"message": {"tool_calls": [{"id": "1", "function": {"name": "x", "arguments": "[]"}}]}}], "content": [{"type": "tool_use", "id": "1", "name": "x", "input": []}]})  # fmt: skip  # noqa: E501
            case "huge":
                self.reply(200, b'{"x":"' + b"a" * (17 * 1024 * 1024) + b'"}')
            case _:
                self.answer(200, openai_answer(body) if self.openai else anthropic_answer(body))

    def fail(
        self, status: int, kind: str, text: str, headers: dict[str, str] | None = None, code: str | None = None
    ) -> None:
        error = {"type": kind, "message": text}
        if self.openai:
            self.answer(status, {"error": {**error, "param": None, "code": code or kind}}, headers)
        else:
            self.answer(status, {"type": "error", "error": error, "request_id": "req_1"}, headers)

    def answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self.reply(status, json.dumps(value).encode(), headers)

    def reply(self, status: int, raw: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(raw)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(raw)
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        return None


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Vendors).serve_forever()
