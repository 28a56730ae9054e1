"""Pass the event stream of another gateway on to the caller: unparsed, and as fast as the caller reads."""

from __future__ import annotations

import asyncio
from typing import Final

from taskgate.inbound.http.asgi import Send
from taskgate.inbound.http.hop import NOT_HERE
from taskgate.inbound.http.post_request import Post
from taskgate.mcp.http.reader import HttpHead, HttpReply
from taskgate.mcp.sse import format_event

_KEPT: Final = frozenset({b"content-type", b"cache-control", b"x-accel-buffering", b"retry-after", b"www-authenticate"})
"""Response headers that describe the content, not the framing."""
_UNREAD_BYTES: Final = 1024 * 1024


class PostRelay:
    """Writes the event stream of another gateway to the caller's connection."""

    __slots__ = ("_tail", "begun", "post")

    def __init__(self, post: Post) -> None:
        self.post = post
        self.begun = False
        self._tail = b"\n\n"

    def on_head(self, head: HttpHead) -> None:
        if head.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self.begun = True
            self.post.begin_stream([])

    def on_chunk(self, chunk: bytes) -> asyncio.Future[None] | None:
        self._tail = (self._tail + chunk)[-2:]
        return self.post.write_chunk(chunk)

    def end(self, last: bytes | None) -> None:
        """End the stream, with a last message if given. In the middle of an event the connection is aborted instead."""
        if last is not None and self._tail != b"\n\n":
            self.post.abort()
            return
        if last is not None:
            self.post.write_chunk(format_event(last))
        self.post.end_stream()


class StreamRelay:
    """Buffers a session's stream between the other gateway and a caller that may read slowly."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0
        self._news = asyncio.Event()
        self._room: asyncio.Future[None] | None = None
        self._head: HttpHead | None = None

    def on_head(self, head: HttpHead) -> None:
        self._head = head
        self._news.set()

    def on_chunk(self, chunk: bytes) -> asyncio.Future[None] | None:
        self._parts.append(chunk)
        self._bytes += len(chunk)
        self._news.set()
        if self._bytes > _UNREAD_BYTES and self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def over(self, _work: asyncio.Task[HttpReply]) -> None:
        self._news.set()

    async def pump(self, send: Send, work: asyncio.Task[HttpReply]) -> bool:
        """Relay until either side ends. Return False if the home is unreachable or does not have the session."""
        while self._head is None and not work.done():
            await self._wait()
        if self._head is None or self._head.status == NOT_HERE:
            return False
        kept = [header for header in self._head.header_list if header[0] in _KEPT]
        await send({"type": "http.response.start", "status": self._head.status, "headers": kept})
        while True:
            parts, self._parts, self._bytes = self._parts, [], 0
            for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            room, self._room = self._room, None
            if room is not None:
                room.set_result(None)
            if not self._parts and work.done():
                break
            await self._wait()
        rest = work.result().body if not work.cancelled() and work.exception() is None else b""
        await send({"type": "http.response.body", "body": rest})
        return True

    async def _wait(self) -> None:
        await self._news.wait()
        self._news.clear()
