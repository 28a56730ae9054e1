"""MCP's streamable HTTP transport: one POST per message, replies as JSON or as an event stream.

For stateful servers it also keeps the standalone GET stream open and resumes a broken stream with `Last-Event-ID`. It never
repeats a request that could run a tool twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from taskgate import clock
from taskgate.client.errors import CannotConnect, ClientError, ConnectionLost, DeadlineExceeded, SessionClosed
from taskgate.client.http_replies import MessageStream, is_event_stream, read_answer, read_failure, refusal
from taskgate.client.messages import Message
from taskgate.client.options import Options
from taskgate.client.transport import Deliver, Header, Login, Outgoing
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.reader import HttpReply
from taskgate.mcp.http.target import Target

# A silent standalone stream is reopened after this time, to detect a half-open connection.
STREAM_SECONDS = 3600.0
# Time that a new session waits for its standalone stream; some servers send its head only with the first event.
LISTENER_SECONDS = 1.0
# Logins per request: one for a token, and one more for a wider scope.
MAX_LOGINS = 2
MAX_WAITING = 65_536
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
_REDIRECTS = (307, 308)
_FIXED: tuple[Header, ...] = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
)


class StreamableHttp:
    """A transport for the server at `url`."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        options: Options,
        deliver: Deliver,
        *,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        self._options, self._deliver = options, deliver
        self._server, self._login, self._token = url, login, login.token(url) if login else None
        self._target = _target(url, headers)
        self._calls = _client(options, tls, options.max_connections, keep=options.max_connections)
        # Separate pool, so that streams that stay open for hours do not use up the connections of calls.
        self._streams = _client(options, tls, MAX_WAITING, keep=0)
        self._stateful = False
        self._version: str | None = None
        self._listener: asyncio.Task[None] | None = None
        self._closed = False
        self.session_id: str | None = None
        self._write_headers()

    @property
    def closing_cancels(self) -> bool:
        return not self._stateful

    def settle(self, protocol_version: str, *, stateful: bool) -> None:
        self._stateful = stateful
        self._version = protocol_version
        self._write_headers()

    async def open_listener(self) -> None:
        """Open the standalone stream and keep it open, unless the server returns 405.

        Waits briefly for the stream, because some servers send a question of the first call there, and drop it if the stream
        is not open.
        """
        self._stop_listener()
        opened = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(opened), name="taskgate-client-listener")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTENER_SECONDS):
                await opened.wait()

    def rejoin(self, session_id: str, protocol_version: str) -> None:
        """Continue a session that another process opened."""
        self.session_id = session_id
        self.settle(protocol_version, stateful=True)

    async def restart(self) -> None:
        self.session_id = self._version = None
        self._write_headers()

    async def exchange(self, outgoing: Outgoing, timeout: float) -> Message:
        deadline = clock.monotonic() + timeout
        stream = MessageStream(outgoing.id, self._deliver)
        in_session = self.session_id is not None
        client = self._streams if outgoing.long else self._calls
        reply = await self._post(client, outgoing.headers, outgoing.body, stream, timeout=timeout)
        if stream.response is not None:
            message = stream.response
        elif reply is None or (reply.status == 200 and is_event_stream(reply)):
            message = await self._resume(stream, deadline)
        else:
            message = read_answer(reply, outgoing.id, self._deliver, in_session=in_session)
        if outgoing.method == "initialize" and reply is not None and "result" in message:
            # Some servers also send a session id with the error to `server/discover`; only a handshake creates a session.
            self._adopt_session(reply)
        return message

    async def post(self, body: bytes, timeout: float) -> None:
        in_session = self.session_id is not None
        reply = await self._post(self._calls, (), body, None, timeout=timeout)
        if reply is not None and not 200 <= reply.status < 300:
            raise refusal(reply, in_session)

    async def close(self) -> None:
        listener = self._listener
        self._stop_listener()
        if listener is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await listener
        if self.session_id is not None and not self._options.keep_session:
            with contextlib.suppress(HttpFailure, ValueError):
                await self._calls.exchange(self._target, b"DELETE", self._headers, deadline_s=2.0)
        self._closed = True
        await asyncio.gather(self._calls.close(), self._streams.close())

    async def _post(
        self,
        client: HttpClient,
        headers: tuple[Header, ...],
        body: bytes,
        stream: MessageStream | None,
        *,
        timeout: float,
    ) -> HttpReply | None:
        """Send a POST, with a redirect and logins if needed. Returns None if the connection broke during an event stream."""
        reply = await self._send(client, b"POST", headers, body, stream, timeout=timeout)
        if reply is not None and reply.status in _REDIRECTS and self._follow(reply):
            reply = await self._send(client, b"POST", headers, body, stream, timeout=timeout)
        for _ in range(MAX_LOGINS):
            if reply is None or reply.status not in (401, 403) or not await self._log_in(reply):
                break
            reply = await self._send(client, b"POST", headers, body, stream, timeout=timeout)
        return reply

    async def _send(
        self,
        client: HttpClient,
        verb: bytes,
        headers: tuple[Header, ...],
        body: bytes,
        stream: MessageStream | None,
        *,
        timeout: float,
    ) -> HttpReply | None:
        try:
            return await client.exchange(
                self._target,
                verb,
                (*self._headers, *headers) if headers else self._headers,
                body,
                deadline_s=timeout,
                on_head=stream.on_head if stream is not None else None,
                on_event=stream.on_event if stream is not None else None,
            )
        except HttpFailure as failure:
            if self._closed:
                raise SessionClosed("the session was closed", failure.executed.value) from failure
            if stream is not None and stream.has_begun and failure.stage is Stage.READ_BODY:
                return None
            raise read_failure(failure, self._target) from failure
        except ValueError as error:
            raise CannotConnect(f"the request cannot be sent: {error}") from error

    async def _log_in(self, reply: HttpReply) -> bool:
        """Obtain a new token if the refusal is about the token and a login is configured. Returns whether to retry."""
        header = reply.headers.get(b"www-authenticate", b"").decode("latin-1")
        if self._login is None or (reply.status == 403 and "insufficient_scope" not in header):
            return False
        self._token = await self._login.answer(self._server, header, self._token)
        self._write_headers()
        return True

    async def _resume(self, stream: MessageStream, deadline: float) -> Message:
        """Resume a stream that ended before the response, if the server supports it. Raises ConnectionLost."""
        pause = FIRST_PAUSE
        while stream.last_id is not None and self._stateful:
            retry_ms = stream.retry_ms
            await clock.sleep(
                min(pause if retry_ms is None else retry_ms / 1000, max(0.0, deadline - clock.monotonic()))
            )
            if clock.monotonic() >= deadline:
                raise DeadlineExceeded("timeout while waiting for the server")
            reply = await self._get(stream, deadline - clock.monotonic())
            if stream.response is not None:
                return stream.response
            if reply is not None and reply.status != 200:
                break
            pause = min(pause * 2, LONGEST_PAUSE)
        raise ConnectionLost("the server closed the stream before the response")

    async def _get(self, stream: MessageStream, timeout: float) -> HttpReply | None:
        resume = ((b"last-event-id", stream.last_id.encode()),) if stream.last_id else ()
        with contextlib.suppress(ConnectionLost, CannotConnect):
            return await self._send(self._streams, b"GET", resume, b"", stream, timeout=timeout)
        return None

    async def _listen(self, opened: asyncio.Event) -> None:
        stream = MessageStream(None, self._deliver, opened)
        pause = FIRST_PAUSE
        while True:
            begun = clock.monotonic()
            try:
                reply = await self._get(stream, STREAM_SECONDS)
                if reply is not None and 400 <= reply.status < 500:
                    return
            except DeadlineExceeded:
                continue
            except ClientError:
                # After invalid data, start a new stream without the last event id.
                stream = MessageStream(None, self._deliver)
            pause = FIRST_PAUSE if clock.monotonic() - begun > 5 else min(pause * 2, LONGEST_PAUSE)
            retry_ms = stream.retry_ms
            await clock.sleep((pause if retry_ms is None else max(retry_ms / 1000, 0.05)) * random.uniform(1.0, 1.2))

    def _stop_listener(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None

    def _adopt_session(self, reply: HttpReply) -> None:
        value = reply.headers.get(b"mcp-session-id")
        self.session_id = value.decode("latin-1") if value else None
        self._write_headers()

    def _follow(self, reply: HttpReply) -> bool:
        """Follow a redirect within the same origin only, so that credentials are not sent elsewhere."""
        try:
            target = self._target.at(reply.headers.get(b"location", b"").decode("latin-1"))
        except ValueError:
            return False
        moved, self._target = target.path != self._target.path, target
        return moved

    def _write_headers(self) -> None:
        bearer = ((b"authorization", f"Bearer {self._token}".encode("latin-1")),) if self._token else ()
        version = ((b"mcp-protocol-version", self._version.encode()),) if self._version else ()
        session = ((b"mcp-session-id", self.session_id.encode("latin-1")),) if self.session_id else ()
        self._headers: tuple[Header, ...] = (*_FIXED, *bearer, *version, *session)


def _target(url: str, headers: Mapping[str, str]) -> Target:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CannotConnect(f"{url!r} is not an http or https URL")
    try:
        return Target.parse(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), headers)
    except ValueError as error:
        raise CannotConnect(f"{url!r} is not valid: {error}") from error


def _client(options: Options, tls: ssl.SSLContext | None, maximum: int, keep: int) -> HttpClient:
    return HttpClient(
        connect_timeout_s=options.connect_timeout,
        max_idle_per_origin=keep,
        max_connections_per_origin=maximum,
        max_waiting_per_origin=MAX_WAITING,
        max_response_bytes=options.max_reply_bytes,
        max_event_bytes=options.max_reply_bytes,
        ssl_context=tls,
    )
