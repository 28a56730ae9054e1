"""What an HTTP reply means in MCP: an answer, a stream of messages, or a refusal.

Reads only; what is to be done about it is decided by `transport.streamable`.
"""

from __future__ import annotations

from collections.abc import Callable

from taskgate.client.errors import ClientError, HttpRefusal, InvalidReply, SessionExpired, Unauthorized
from taskgate.client.transport.carrier import Deliver
from taskgate.client.transport.connection import HttpReply
from taskgate.client.transport.sse import EventReader
from taskgate.client.wire import Message, decode_messages, is_reply_to


class MessageStream:
    """Sorts the messages of one event stream: our response here, everything else to `deliver`."""

    __slots__ = ("_deliver", "_limit", "_on_open", "_reader", "_request_id", "response")

    def __init__(
        self,
        request_id: int | str | None,
        deliver: Deliver,
        limit: int,
        on_open: Callable[[], None] | None = None,
    ) -> None:
        self._request_id = request_id
        self._on_open = on_open
        self._deliver = deliver
        self.response: Message | None = None
        self._limit = limit
        self._reader: EventReader | None = None

    @property
    def reader(self) -> EventReader:
        """Made when it is needed: most replies turn out to be no stream."""
        if self._reader is None:
            self._reader = EventReader(self._on_data, self._limit)
        return self._reader

    def opened(self) -> None:
        if self._on_open is not None:
            self._on_open()

    def feed(self, chunk: bytes) -> bool:
        waiting = self.response is None
        self.reader.feed(chunk)
        return waiting and self.response is not None

    def _on_data(self, data: bytes) -> None:
        for message in decode_messages(data):
            if self._request_id is not None and is_reply_to(message, self._request_id):
                self.response = self.response or message
            else:
                self._deliver(message)


def read_answer(reply: HttpReply, request_id: int | str, deliver: Deliver, *, in_session: bool) -> Message:
    """The answer in a reply that is no stream; anything else in it goes to `deliver`."""
    if reply.body[:1] not in (b"{", b"[") and reply.content_type != b"application/json":
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
        raise InvalidReply("the server answered another request than the one it was asked")
    return answer


def refusal(reply: HttpReply, in_session: bool) -> ClientError:
    if reply.status in (200, 202):
        return InvalidReply(f"the server answered a request with HTTP {reply.status} and no JSON")
    text = reply.body[:200].decode("utf-8", "replace").strip()
    message = f"HTTP {reply.status} from the server" + (f": {text}" if text else "")
    if reply.status in (401, 403):
        return Unauthorized(reply.status, message)
    if reply.status == 404 and in_session:
        return SessionExpired(404, message)
    return HttpRefusal(reply.status, message, _retry_after(reply))


def _may_answer(status: int, answer: Message | None, in_session: bool) -> bool:
    """Whether a JSON-RPC body that came with an error status is the answer, rather than decoration on a refusal."""
    if answer is None or "error" not in answer:
        return False
    if status == 404 and in_session:
        error = answer["error"]
        return isinstance(error, dict) and error.get("code") == -32601
    return status not in (401, 403, 429, 503)


def _retry_after(reply: HttpReply) -> float | None:
    value = reply.headers.get(b"retry-after", b"").strip()
    return float(min(int(value[:6]), 3600)) if value.isdigit() else None
