"""The answer to one POST: plain JSON if the result is the first thing to come, an event stream if anything comes before it.

Most calls never leave the cheap path. The pump that writes the stream is the one task that exists beside a call, and only then.
"""

from __future__ import annotations

import asyncio

from taskgate.doors.http.asgi import SSE_HEADERS, Headers, Send, respond_json
from taskgate.doors.http.event_stream import EventStream, StreamShelf


class PostReply:
    """The outlet of a request that came by POST."""

    __slots__ = ("_paused", "_primed", "_pump", "_retry_ms", "_send", "_shelf", "_stream", "headers", "prefers_stream")

    def __init__(self, send: Send, shelf: StreamShelf | None, primed: bool = False) -> None:
        self._send = send
        self._shelf = shelf
        self._primed = primed
        self._stream: EventStream | None = None
        self._pump: asyncio.Task[None] | None = None
        self._paused = False
        self._retry_ms: int | None = None
        self.headers: Headers = []
        self.prefers_stream = False

    @property
    def streaming(self) -> bool:
        return self._stream is not None

    def send(self, message: bytes) -> None:
        self.begin().send(message)

    def begin(self) -> EventStream:
        """Turn the answer into a stream now, for instance because the call is being held."""
        if self._stream is None:
            self._stream = self._shelf.new() if self._shelf is not None else EventStream("", resumable=False)
            self._pump = asyncio.get_running_loop().create_task(self._write(self._stream))
        return self._stream

    def prime(self, retry_ms: int | None) -> None:
        """The upstream gave its stream a point to resume from: so do we, with the same pause between attempts."""
        if self._primed and self._stream is None:
            self._retry_ms = retry_ms
            self.begin()

    def pause(self) -> None:
        """The upstream hung up for now and will be asked again: so will we. The stream stays, to be resumed."""
        if self._primed and self._stream is not None:
            self._paused = True
            self._stream.nudge()

    async def finish(self, status: int, body: bytes, headers: Headers) -> None:
        if self.prefers_stream and status == 200:
            self.headers.extend(headers)
            self.begin()
        if self._stream is None or self._pump is None:
            await respond_json(self._send, status, body, [*self.headers, *headers])
            return
        self._stream.send(body)
        self._stream.close()
        await self._pump

    async def abandon(self) -> None:
        """The request was cancelled: end without a response, as the specification wants."""
        if self._stream is None or self._pump is None:
            await respond_json(self._send, 202, b"", self.headers)
            return
        self._stream.close()
        await self._pump

    async def _write(self, stream: EventStream) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *self.headers]})
        if self._primed:
            await self._body(stream.priming_frame(self._retry_ms))
        async for frame in stream.follow():
            if self._paused:
                break
            await self._body(frame)
        await self._send({"type": "http.response.body", "body": b""})

    async def _body(self, frame: bytes) -> None:
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
