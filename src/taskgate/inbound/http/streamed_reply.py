"""The answer to a POST as an event stream: for a call that says something before its result, or is held.

The pump that writes the stream is the one task that exists beside a call, and only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from taskgate.gateway.plan.plan import Limits
from taskgate.inbound.http.asgi import Headers
from taskgate.inbound.http.event_stream import EventStream, StreamBuffers


class Framed(Protocol):
    """The POST that is answered, as its stream sees it: whoever writes the frames."""

    stream_buffers: StreamBuffers | None
    primed: bool

    @property
    def limits(self) -> Callable[[], Limits]: ...

    def begin_stream(self, headers: Headers) -> None: ...

    async def write(self, frame: bytes) -> None: ...

    def end_stream(self) -> None: ...


class StreamedReply:
    __slots__ = ("_headers", "_paused", "_post", "_pump", "_retry_ms", "_stream")

    def __init__(self, post: Framed, headers: Headers, retry_ms: int | None) -> None:
        self._post = post
        self._headers = headers
        self._retry_ms = retry_ms
        self._paused = False
        self._stream = (
            post.stream_buffers.new() if post.stream_buffers is not None else EventStream("", False, post.limits)
        )
        self._pump = asyncio.get_running_loop().create_task(self._write())

    def send(self, message: bytes) -> None:
        self._stream.send(message)

    def pause(self) -> None:
        """Nobody reads it here any more: write no further, and ping no more. It may be resumed elsewhere."""
        self._paused = True
        self._stream.nudge()

    async def finish(self, last: bytes | None) -> None:
        """The result, and the end; or the end alone."""
        if last is not None:
            self._stream.send(last)
        self._stream.close()
        await self._pump

    async def _write(self) -> None:
        self._post.begin_stream(self._headers)
        if self._post.primed:
            await self._post.write(self._stream.priming_frame(self._retry_ms))
        async with aclosing(self._stream.follow()) as frames:
            async for frame in frames:
                if self._paused:
                    break
                await self._post.write(frame)
        self._post.end_stream()
