"""JSON-RPC messages as bytes, and what the session needs from a transport, whichever it is.

A transport takes one request and comes back with its response; everything else that arrives (notifications, the
server's own requests) it hands to `deliver` the moment it comes. It knows how messages travel, not what they mean.

Decoding keeps integers of any size and never turns them into floats. The fast decoder refuses lone surrogates,
which some servers do send inside otherwise good text, so the standard library's decoder gets a second try.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from taskgate.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    HttpRefusal,
    InvalidReply,
    ReplyTooLarge,
    SessionClosed,
    SessionExpired,
    Unauthorized,
    stated_executed,
)
from taskgate.client.results import Options
from taskgate.mcp.failures import ChildFailure, HttpFailure, Stage
from taskgate.mcp.http.reader import HttpHead, HttpReply
from taskgate.mcp.http.target import Target
from taskgate.mcp.lines import Oversize
from taskgate.mcp.sse import SseEvent
from taskgate.mcp.stdio.child import Child, ChildExit
from taskgate.mcp.stdio.process import ChildSpec

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()

Message = dict[str, Any]
Deliver = Callable[[Message], None]
Header = tuple[bytes, bytes]


class Outgoing(msgspec.Struct, frozen=True):
    """One request on its way out. `headers` go with it over HTTP; `long` marks a wait that may take hours."""

    id: int | str
    method: str
    body: bytes
    headers: tuple[Header, ...] = ()
    long: bool = False


class Login(Protocol):
    """Something that can answer a server's demand for a token."""

    def token(self, url: str) -> str | None: ...

    async def answer(self, url: str, header: str, used: str | None) -> str: ...


class Transport(Protocol):
    """A way to talk to one server."""

    @property
    def session_id(self) -> str | None:
        """The server's name for this session, by which another process may go on in it; None where there is none."""
        ...

    @property
    def closing_cancels(self) -> bool:
        """Whether giving up a request closes something the server sees, so that no cancel message is needed."""
        ...

    async def exchange(self, outgoing: Outgoing, timeout: float) -> Message:
        """Send a request and wait for its response."""
        ...

    async def post(self, body: bytes, timeout: float) -> None:
        """Send a notification or a response; nothing comes back."""
        ...

    def settle(self, protocol_version: str, *, stateful: bool) -> None:
        """The generation is known now."""
        ...

    async def restart(self) -> None:
        """Begin again from nothing, for a server that did not survive being asked for its generation."""
        ...

    async def close(self) -> None: ...


def encode(message: Message) -> bytes:
    """The message as compact JSON. A value JSON cannot carry is the caller's mistake and raises `TypeError`."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray) -> Any:
    """The JSON value in `data`."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _decode_patiently(data)


def decode_messages(data: bytes | bytearray) -> list[Message]:
    """The JSON-RPC message, or the messages of a batch (servers of 2025-03-26 may send one)."""
    value = decode(data)
    messages = value if isinstance(value, list) else [value]
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise InvalidReply("the server sent JSON that is not a JSON-RPC message")
    return messages


def is_reply_to(message: Message, request_id: int | str) -> bool:
    """Whether this is the response to our request; a few servers answer a number as text."""
    if "method" in message or ("result" not in message and "error" not in message):
        return False
    answered = message.get("id")
    return answered == request_id or (answered is not None and str(answered) == str(request_id))


def _decode_patiently(data: bytes | bytearray) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidReply(f"the server sent something that is not JSON: {bytes(data[:80])!r}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# MCP over the standard streams of a child process: one JSON message a line.
#
# It starts the program in a process group of its own, fails every outstanding request when the program ends (with the
# last lines it wrote to standard error) and makes sure that nothing is left running. Made by `connect`.

# How long a program may take to leave after its input was closed, and again after it was asked to terminate.
LEAVE_SECONDS = 2.0
LAST_WORDS = 2000


class Stdio:
    """A transport that owns one child process."""

    closing_cancels = False
    session_id = None

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, options: Options, deliver: Deliver
    ) -> None:
        self._spec = ChildSpec(command[0], tuple(command[1:]), env, cwd)
        self._options, self._deliver = options, deliver
        self._child: Child | None = None
        self._pending: dict[str, asyncio.Future[Message]] = {}
        self._complaints: deque[str] = deque(maxlen=40)
        self._broken: Callable[[str], ClientError] | None = None
        """The error for a request, given whether it was executed; None while the program runs."""

    async def start(self) -> None:
        try:
            self._child = await Child.start(
                self._spec,
                on_line=self._sort,
                on_exit=self._exited,
                on_oversize=self._oversized,
                on_stderr=self._complaints.append,
                reaper=None,
                max_line_bytes=self._options.max_reply_bytes,
            )
        except ChildFailure as failure:
            raise CannotConnect(f"cannot start {self._spec.command!r}: {failure.message}") from failure
        self._broken = None

    def settle(self, protocol_version: str, *, stateful: bool) -> None:
        """Nothing on this wire depends on the generation."""

    async def restart(self) -> None:
        if self._child is None or self._broken is not None:
            await self._stop()
            await self.start()

    async def exchange(self, outgoing: Outgoing, timeout: float) -> Message:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        key = str(outgoing.id)
        self._pending[key] = future
        try:
            async with asyncio.timeout(timeout):
                self._write(outgoing.body)
                return await future
        except TimeoutError as error:
            raise DeadlineExceeded("the server did not answer in time") from error
        finally:
            self._pending.pop(key, None)

    async def post(self, body: bytes, timeout: float) -> None:
        self._write(body)

    async def close(self) -> None:
        self._fail(partial(SessionClosed, "the session was closed"))
        await self._stop()

    def _write(self, body: bytes) -> None:
        if self._broken is not None:
            raise self._broken("no")
        if self._child is None:
            raise SessionClosed("the session is not open", "no")
        try:
            self._child.send(body)
        except ChildFailure as failure:
            message = f"the server program cannot be written to: {failure.message}{self._last_words()}"
            raise ConnectionLost(message, failure.executed.value) from failure

    def _sort(self, line: bytes) -> None:
        try:
            messages = decode_messages(line)
        except InvalidReply:
            said = line[:200].decode("utf-8", "replace")
            self._complaints.append(f"(on standard output) {said}")  # programs that print are common
            return
        for message in messages:
            if "method" in message:
                self._deliver(message)
                continue
            future = self._pending.get(str(message.get("id")))
            if future is not None and not future.done():
                future.set_result(message)

    def _oversized(self, line: Oversize) -> None:
        text = f"the server sent a line longer than {self._options.max_reply_bytes} bytes"
        self._fail(lambda executed: ReplyTooLarge(text) if executed == "maybe" else ConnectionLost(text, executed))

    def _exited(self, ending: ChildExit) -> None:
        self._fail(partial(ConnectionLost, f"the server program ended{self._last_words()}"))

    def _fail(self, error: Callable[[str], ClientError]) -> None:
        """Each request gets an exception of its own: what is known about one is not known about another."""
        self._broken = self._broken or error
        for future in self._pending.values():
            if not future.done():
                future.set_exception(error("maybe"))

    def _last_words(self) -> str:
        text = "\n".join(self._complaints).strip()
        return f"; it said: {text[-LAST_WORDS:]}" if text else ""

    async def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.stop(LEAVE_SECONDS)


# What an HTTP reply means in MCP: an answer, a stream of messages, a refusal, or a failure on the way.
#
# Reads only; what is to be done about it is decided by `streamable_http`.

LONGEST_RETRY_MS = 3_600_000
_NEVER_CONNECTED = (Stage.RESOLVE, Stage.CONNECT, Stage.TLS)


class MessageStream:
    """Sorts the messages of one event stream: our response here, everything else to `deliver`."""

    __slots__ = ("_deliver", "_opened", "_request_id", "has_begun", "last_id", "response", "retry_ms")

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
        """Whether nothing more is needed from the stream."""
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
    """The answer in a reply that is no stream; anything else in it goes to `deliver`."""
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
        raise InvalidReply("the server answered another request than the one it was asked")
    return answer


def refusal(reply: HttpReply, in_session: bool) -> ClientError:
    if reply.status in (200, 202):
        return InvalidReply(f"the server answered a request with HTTP {reply.status} and no JSON")
    text = reply.body[:200].decode("utf-8", "replace").strip()
    message = f"HTTP {reply.status} from the server" + (f": {text}" if text else "")
    stated = _stated(reply)
    if reply.status in (401, 403):
        return Unauthorized(reply.status, message, stated=stated)
    if reply.status == 404 and in_session:
        return SessionExpired(404, message, stated=stated)
    return HttpRefusal(reply.status, message, _retry_after(reply), stated=stated)


def _stated(reply: HttpReply) -> str | None:
    """`data.executed` of a JSON-RPC error that came with the refusal."""
    try:
        messages = decode_messages(reply.body) if reply.body[:1] == b"{" else []
    except InvalidReply:
        return None
    error = messages[0].get("error") if messages else None
    return stated_executed(error.get("data")) if isinstance(error, dict) else None


def read_failure(failure: HttpFailure, target: Target) -> ClientError:
    """The error that a user of the client sees when no usable reply came."""
    before = failure.__cause__
    if failure.stage in _NEVER_CONNECTED or isinstance(before, HttpFailure):
        return CannotConnect(f"no connection to {target.origin.host}:{target.origin.port}: {failure.message}")
    match failure.stage:
        case Stage.DEADLINE:
            return DeadlineExceeded("the server did not answer in time", failure.executed.value)
        case Stage.POOL_FULL:
            return DeadlineExceeded(f"all connections to the server stayed busy: {failure.message}", "no")
        case Stage.TOO_LARGE:
            return ReplyTooLarge(failure.message)
        case Stage.MALFORMED:
            return InvalidReply(f"the server does not speak HTTP: {failure.message}")
    return ConnectionLost(
        f"the server closed the connection before it answered: {failure.message}", failure.executed.value
    )


def _content_type(reply: HttpHead | HttpReply) -> bytes:
    return reply.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


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
