"""The answer to one POST: plain JSON if the result is the first thing to come, an event stream if anything comes before it.

Most calls never leave the cheap path. The pump that writes the stream is the one task that exists beside a call, and only then.
"""

from __future__ import annotations

import asyncio

from taskgate.doors.http.asgi import SSE_HEADERS, Headers, Send, respond_json
from taskgate.doors.http.event_stream import EventStream, StreamShelf


class PostReply:
    """The outlet of a request that came by POST."""

    __slots__ = ("_primed", "_pump", "_send", "_shelf", "_stream", "headers")

    def __init__(self, send: Send, shelf: StreamShelf | None, primed: bool = False) -> None:
        self._send = send
        self._shelf = shelf
        self._primed = primed
        self._stream: EventStream | None = None
        self._pump: asyncio.Task[None] | None = None
        self.headers: Headers = []

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

    async def finish(self, status: int, body: bytes, headers: Headers) -> None:
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
            await self._body(stream.priming_frame())
        async for frame in stream.follow():
            await self._body(frame)
        await self._send({"type": "http.response.body", "body": b""})

    async def _body(self, frame: bytes) -> None:
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
