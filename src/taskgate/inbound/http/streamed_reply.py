"""The response to a POST as an event stream, for a call that sends messages before its result or is held.

The task that writes the stream is the only task besides the call itself, and exists only in this case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from taskgate.core.settings.limits import Limits
from taskgate.inbound.http.asgi import Headers
from taskgate.inbound.http.event_stream import EventStream
from taskgate.inbound.http.session_streams import StreamBuffers


class Framed(Protocol):
    """The interface of the POST request that its stream uses."""

    stream_buffers: StreamBuffers | None
    primed: bool

    @property
    def limits(self) -> Callable[[], Limits]: ...

    def begin_stream(self, headers: Headers) -> None: ...

    async def write(self, frame: bytes) -> None: ...

    def end_stream(self) -> None: ...


class StreamedReply:
    __slots__ = ("_headers", "_paused", "_pump", "_retry_ms", "_stream")

    def __init__(self, post: Framed, headers: Headers, retry_ms: int | None) -> None:
        self._headers = headers
        self._retry_ms = retry_ms
        self._paused = False
        self._stream = (
            post.stream_buffers.new() if post.stream_buffers is not None else EventStream("", False, post.limits)
        )
        self._pump = asyncio.get_running_loop().create_task(self._write(post))

    def send(self, message: bytes) -> None:
        self._stream.send(message)

    @property
    def followed(self) -> bool:
        """Whether the caller reads it, on this connection or on one that resumed it."""
        return self._stream.followed

    def pause(self) -> None:
        """Stop writing to this connection. The stream may be resumed on another."""
        self._paused = True
        self._stream.wake_readers()

    async def finish(self, last: bytes | None) -> None:
        """Send the result, if given, and end the stream."""
        if last is not None:
            self._stream.send(last)
        self._stream.close()
        await self._pump

    async def _write(self, post: Framed) -> None:
        post.begin_stream(self._headers)
        if post.primed:
            await post.write(self._stream.priming_frame(self._retry_ms))
        async with aclosing(self._stream.follow()) as frames:
            async for frame in frames:
                if self._paused:
                    break
                await post.write(frame)
        post.end_stream()
