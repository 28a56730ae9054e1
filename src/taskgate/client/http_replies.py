"""Interpret an HTTP reply: a JSON-RPC response, an event stream, a refusal, or a failed connection.

Reads only; `streamable_http` decides what to do about it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from taskgate.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    HttpRefusal,
    InvalidReply,
    ReplyTooLarge,
    SessionExpired,
    Unauthorized,
    stated_executed,
)
from taskgate.client.messages import Message, decode_messages, is_reply_to
from taskgate.client.transport import Deliver
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.reader import HttpHead, HttpReply
from taskgate.mcp.http.target import Target
from taskgate.mcp.sse import SseEvent

LONGEST_RETRY_MS = 3_600_000
_NEVER_CONNECTED = (Stage.RESOLVE, Stage.CONNECT, Stage.TLS)


class MessageStream:
    """Reads one event stream: keeps the response to the request, and passes other messages to `deliver`."""

    def __init__(self, request_id: int | str | None, deliver: Deliver, opened: asyncio.Event | None = None) -> None:
        self._request_id = request_id
        self._deliver = deliver
        self._opened = opened
        self.response: Message | None = None
        self.has_begun = False
        self.last_id: str | None = None
        self.retry_ms: int | None = None

    def on_head(self, head: HttpHead) -> None:
        self.has_begun = is_event_stream(head)
        if self._opened is not None:
            self._opened.set()

    def on_event(self, event: SseEvent) -> bool:
        """Process one event; return True when the response has arrived."""
        if event.id is not None:
            self.last_id = event.id or None
        if event.retry is not None:
            self.retry_ms = min(event.retry, LONGEST_RETRY_MS)
        for message in decode_messages(event.data) if event.data else ():
            if self._request_id is not None and is_reply_to(message, self._request_id):
                self.response = self.response or message
            else:
                self._deliver(message)
        return self.response is not None


def is_event_stream(reply: HttpHead | HttpReply) -> bool:
    return _content_type(reply) == b"text/event-stream"


def read_answer(reply: HttpReply, request_id: int | str, deliver: Deliver, *, in_session: bool) -> Message:
    """Return the response in a JSON reply; other messages in it are passed to `deliver`. Raises ClientError."""
    if reply.body[:1] not in (b"{", b"[") and _content_type(reply) != b"application/json":
        raise refusal(reply, in_session)
    try:
        messages = decode_messages(reply.body)
    except InvalidReply:
        if reply.status == 200:
            raise
        raise refusal(reply, in_session) from None
    answer = None
    for message in messages:
        if is_reply_to(message, request_id) or (
            reply.status >= 400 and "error" in message and message.get("id") is None
        ):
            answer = answer or message
        else:
            deliver(message)
    if reply.status != 200 and not _may_answer(reply.status, answer, in_session):
        raise refusal(reply, in_session)
    if answer is None:
        raise InvalidReply("the reply does not contain the response to the request")
    return answer


def refusal(reply: HttpReply, in_session: bool) -> ClientError:
    if reply.status in (200, 202):
        return InvalidReply(f"the server returned HTTP {reply.status} without JSON for a request")
    error = _error_in(reply)
    given = error.get("message")
    text = given if type(given) is str else reply.body[:200].decode("utf-8", "replace").strip()
    message = f"HTTP {reply.status} from the server" + (f": {text}" if text else "")
    stated = stated_executed(error.get("data"))
    if reply.status in (401, 403):
        return Unauthorized(reply.status, message, stated=stated)
    if reply.status == 404 and in_session:
        return SessionExpired(404, message, stated=stated)
    return HttpRefusal(reply.status, message, _retry_after(reply), stated=stated)


def _error_in(reply: HttpReply) -> dict[str, Any]:
    """Return the JSON-RPC error in the body; empty if there is none."""
    try:
        messages = decode_messages(reply.body) if reply.body[:1] == b"{" else []
    except InvalidReply:
        return {}
    error = messages[0].get("error") if messages else None
    return error if isinstance(error, dict) else {}


def read_failure(failure: HttpFailure, target: Target) -> ClientError:
    """Return the client error for a failed HTTP exchange."""
    before = failure.__cause__
    if failure.stage in _NEVER_CONNECTED or isinstance(before, HttpFailure):
        return CannotConnect(f"cannot connect to {target.origin.host}:{target.origin.port}: {failure.message}")
    match failure.stage:
        case Stage.DEADLINE:
            return DeadlineExceeded("timeout while waiting for the server", failure.executed.value)
        case Stage.POOL_FULL:
            return DeadlineExceeded(f"no free connection to the server: {failure.message}", "no")
        case Stage.TOO_LARGE:
            return ReplyTooLarge(failure.message)
        case Stage.MALFORMED:
            return InvalidReply(f"the server returned invalid HTTP: {failure.message}")
    return ConnectionLost(
        f"the server closed the connection before the response: {failure.message}", failure.executed.value
    )


def _content_type(reply: HttpHead | HttpReply) -> bytes:
    return reply.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _may_answer(status: int, answer: Message | None, in_session: bool) -> bool:
    """Whether a JSON-RPC error in the body of an error status is the response, rather than detail of a refusal."""
    if answer is None or "error" not in answer:
        return False
    if status == 404 and in_session:
        error = answer["error"]
        return isinstance(error, dict) and error.get("code") == -32601
    return status not in (401, 403, 429, 503)


def _retry_after(reply: HttpReply) -> float | None:
    value = reply.headers.get(b"retry-after", b"").strip()
    return float(min(int(value[:6]), 3600)) if value.isdigit() else None
