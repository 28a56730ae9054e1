"""MCP's streamable HTTP transport: one POST for each message, replies as JSON or as an event stream.

For stateful servers it also keeps the standalone GET stream open and resumes a broken stream with `Last-Event-ID`.
It reports facts (`SessionExpired`, `HttpRefusal`) and repeats nothing that could run a tool twice. Made by
`connect`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

from taskgate import clock
from taskgate.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
)
from taskgate.client.options import Options
from taskgate.client.transport.carrier import Deliver, Login, Outgoing
from taskgate.client.transport.connection import HttpReply
from taskgate.client.transport.http import HttpPool
from taskgate.client.transport.replies import MessageStream, read_answer, refusal
from taskgate.client.wire import Message

# A silent standalone stream is reopened after this long, so that a half-dead connection is noticed.
STREAM_SECONDS = 3600.0
# How long a new session waits for its standalone stream; a few servers send its head only with the first event.
LISTENER_SECONDS = 1.0
# How often one request may lead to a login: once for a token, once more for a wider one.
MOST_LOGINS = 2
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
_REDIRECTS = (307, 308)


class StreamableHttp:
    """A carrier that speaks to `url`."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        options: Options,
        deliver: Deliver,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CannotConnect(f"{url!r} is not an http or https address")
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        self._url, self._options, self._deliver = url, options, deliver
        self._server, self._login, self._token = url, login, login.token(url) if login else None
        self._common = _common_lines(parts.netloc.rpartition("@")[2], headers)
        self._set_path(url)
        self._pool = HttpPool(
            parts.hostname,
            port,
            (tls or ssl.create_default_context()) if secure else None,
            max_connections=options.max_connections,
            max_reply_bytes=options.max_reply_bytes,
            connect_timeout=options.connect_timeout,
        )
        self._stateful = False
        self._version_line = b""
        self._listener: asyncio.Task[None] | None = None
        self.session_id: str | None = None

    @property
    def closing_cancels(self) -> bool:
        return not self._stateful

    def settle(self, protocol_version: str, *, stateful: bool) -> None:
        self._stateful = stateful
        self._version_line = f"mcp-protocol-version: {protocol_version}\r\n".encode()
        self._write_head()

    async def open_listener(self) -> None:
        """Keep the standalone stream open from now on; a server without one answers 405 and is left alone.

        It waits a moment for the stream: some servers push a question there for the very first call, and drop it if
        nobody listens yet.
        """
        self._stop_listener()
        opened = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(opened), name="taskgate-client-listener")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTENER_SECONDS):
                await opened.wait()

    def rejoin(self, session_id: str, protocol_version: str) -> None:
        """Go on in a session that another conversation began."""
        self.session_id = session_id
        self.settle(protocol_version, stateful=True)

    async def restart(self) -> None:
        self.session_id = None
        self._version_line = b""
        self._write_head()

    async def exchange(self, outgoing: Outgoing, timeout: float) -> Message:
        deadline = clock.monotonic() + timeout
        stream = MessageStream(outgoing.id, self._deliver, self._options.max_reply_bytes)
        in_session = self.session_id is not None
        reply = await self._post(outgoing.headers, outgoing.body, stream, timeout, pooled=not outgoing.long)
        if reply.status == 200 and reply.content_type == b"text/event-stream":
            message = stream.response or await self._resume(stream, deadline)
        else:
            message = read_answer(reply, outgoing.id, self._deliver, in_session=in_session)
        if outgoing.method == "initialize" and "result" in message:
            # Some servers put a session id on the error to the generation probe too; only a handshake makes a session.
            self._adopt_session(reply)
        return message

    async def post(self, body: bytes, timeout: float) -> None:
        in_session = self.session_id is not None
        reply = await self._post(b"", body, None, timeout, pooled=True)
        if not 200 <= reply.status < 300:
            raise refusal(reply, in_session)

    async def close(self) -> None:
        listener = self._listener
        self._stop_listener()
        if listener is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await listener
        if self.session_id is not None and not self._options.keep_session:
            with contextlib.suppress(ClientError):
                await self._pool.send(b"DELETE " + self._head[5:] + b"content-length: 0\r\n\r\n", None, 2.0)
        await self._pool.close()

    async def _post(
        self, headers: bytes, body: bytes, stream: MessageStream | None, timeout: float, *, pooled: bool
    ) -> HttpReply:
        tail = b"%bcontent-length: %d\r\n\r\n%b" % (headers, len(body), body)
        reply = await self._pool.send(self._head + tail, stream, timeout, pooled=pooled)
        if reply.status in _REDIRECTS and self._follow(reply):
            reply = await self._pool.send(self._head + tail, stream, timeout, pooled=pooled)
        for _ in range(MOST_LOGINS):
            if reply.status not in (401, 403) or not await self._log_in(reply):
                break
            reply = await self._pool.send(self._head + tail, stream, timeout, pooled=pooled)
        return reply

    async def _log_in(self, reply: HttpReply) -> bool:
        """Get a better token, where the refusal is about tokens and there is a way to log in."""
        header = reply.headers.get(b"www-authenticate", b"").decode("latin-1")
        if self._login is None or (reply.status == 403 and "insufficient_scope" not in header):
            return False
        self._token = await self._login.answer(self._server, header, self._token)
        self._write_head()
        return True

    async def _resume(self, stream: MessageStream, deadline: float) -> Message:
        """The stream ended without our response: ask for the rest of it, if the server made that possible."""
        pause = FIRST_PAUSE
        while stream.reader.last_id is not None and self._stateful:
            wanted = stream.reader.retry_ms
            await clock.sleep(min(pause if wanted is None else wanted / 1000, max(0.0, deadline - clock.monotonic())))
            if clock.monotonic() >= deadline:
                raise DeadlineExceeded("the server did not answer in time")
            reply = await self._get(stream, deadline - clock.monotonic())
            if stream.response is not None:
                return stream.response
            if reply is not None and reply.status != 200:
                break
            pause = min(pause * 2, LONGEST_PAUSE)
        raise ConnectionLost("the server ended its stream before it answered")

    async def _get(self, stream: MessageStream, timeout: float) -> HttpReply | None:
        resume = f"last-event-id: {stream.reader.last_id}\r\n".encode() if stream.reader.last_id else b""
        data = b"GET " + self._head[5:] + resume + b"\r\n"
        with contextlib.suppress(ConnectionLost, CannotConnect):
            return await self._pool.send(data, stream, timeout, pooled=False)
        return None

    async def _listen(self, opened: asyncio.Event) -> None:
        stream = MessageStream(None, self._deliver, self._options.max_reply_bytes, opened.set)
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
                # A stream that sends rubbish is begun afresh: its remembered position is worth nothing.
                stream = MessageStream(None, self._deliver, self._options.max_reply_bytes)
            pause = FIRST_PAUSE if clock.monotonic() - begun > 5 else min(pause * 2, LONGEST_PAUSE)
            wanted = stream.reader.retry_ms
            await clock.sleep((pause if wanted is None else max(wanted / 1000, 0.05)) * random.uniform(1.0, 1.2))

    def _stop_listener(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None

    def _adopt_session(self, reply: HttpReply) -> None:
        value = reply.headers.get(b"mcp-session-id")
        self.session_id = value.decode("latin-1") if value else None
        self._write_head()

    def _follow(self, reply: HttpReply) -> bool:
        """Take a redirect only within the same origin: credentials must not travel further."""
        target = urljoin(self._url, reply.headers.get(b"location", b"").decode("latin-1"))
        old, new = urlsplit(self._url), urlsplit(target)
        if (old.scheme, old.netloc) != (new.scheme, new.netloc) or target == self._url:
            return False
        self._url = target
        self._set_path(target)
        return True

    def _set_path(self, url: str) -> None:
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._path = path.encode("ascii", "strict") if path.isascii() and " " not in path else _quoted(path)
        self.session_id = getattr(self, "session_id", None)
        self._version_line = getattr(self, "_version_line", b"")
        self._write_head()

    def _write_head(self) -> None:
        session = f"mcp-session-id: {self.session_id}\r\n".encode("latin-1") if self.session_id else b""
        bearer = f"authorization: Bearer {self._token}\r\n".encode("latin-1") if self._token else b""
        self._head = b"POST %b HTTP/1.1\r\n%b%b%b%b" % (self._path, self._common, bearer, self._version_line, session)


def _common_lines(host: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"host: {host}", "content-type: application/json", "accept: application/json, text/event-stream"]
    for name, value in headers.items():
        if any(character in name + value for character in "\r\n\0"):
            raise CannotConnect(f"the header {name!r} contains a line break")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")


def _quoted(path: str) -> bytes:
    from urllib.parse import quote

    return quote(path, safe="/?&=%:@!$'()*+,;~-._").encode("ascii")
