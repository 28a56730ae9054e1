"""Streams of events to callers: a burst between two turns of the writer loses nothing, and an answer never gives way to notes."""

from __future__ import annotations

import asyncio

import pytest

from taskgate.core import wire
from taskgate.core.settings.limits import Limits
from taskgate.inbound.http.asgi import Headers
from taskgate.inbound.http.event_stream import UNREAD_FACTOR, EventStream
from taskgate.inbound.http.session_streams import StreamBuffers
from taskgate.inbound.http.streamed_reply import StreamedReply
from taskgate.mcp.sse import SseParser

NOTE = wire.notification("notifications/message", b'{"level":"info","data":"%s"}' % (b"x" * 80))
OTHER_NOTE = wire.notification("notifications/tools/list_changed", None)
RESULT = wire.success(b"1", b'{"content":[]}')
LIMITS = Limits()


def messages(frames: list[bytes]) -> list[bytes]:
    parser = SseParser(1 << 20)
    return [event.data for frame in frames for event in parser.feed(frame) if event.data]


class PostDouble:
    """The frame around a reply: collects what is written, and takes a frame only while `open_` is set."""

    def __init__(self, stream_buffers: StreamBuffers | None) -> None:
        self.stream_buffers = stream_buffers
        self.primed = False
        self.frames: list[bytes] = []
        self.ended = False
        self.open_ = asyncio.Event()
        self.open_.set()

    def limits(self) -> Limits:
        return LIMITS

    def begin_stream(self, headers: Headers) -> None:
        return None

    async def write(self, frame: bytes) -> None:
        await self.open_.wait()
        self.frames.append(frame)

    def end_stream(self) -> None:
        self.ended = True


@pytest.mark.parametrize("lines", [300, 3_000, 20_000])
@pytest.mark.parametrize("resumable", [True, False])
async def test_a_burst_of_log_lines_loses_no_line_and_no_response(lines: int, resumable: bool) -> None:
    post = PostDouble(StreamBuffers(lambda: LIMITS) if resumable else None)
    reply = StreamedReply(post, [], None)
    reply.send(NOTE)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(lines - 1):
        reply.send(NOTE)
    await reply.finish(RESULT)
    assert messages(post.frames) == [NOTE] * lines + [RESULT]
    assert post.ended


async def test_a_reader_that_pauses_in_a_flood_gets_its_response_within_bounded_memory() -> None:
    post = PostDouble(None)
    reply = StreamedReply(post, [], None)
    post.open_.clear()
    many = 2 * UNREAD_FACTOR * LIMITS.stream_buffer_bytes // len(NOTE)
    for number in range(many):
        reply.send(NOTE)
        if number % 1000 == 0:
            await asyncio.sleep(0)
    post.open_.set()
    await reply.finish(RESULT)
    read = messages(post.frames)
    assert read[-1] == RESULT
    assert sum(map(len, read)) <= UNREAD_FACTOR * LIMITS.stream_buffer_bytes + len(RESULT)


async def test_an_unread_session_stream_is_dropped_and_a_read_one_is_not() -> None:
    stream = EventStream("g", True, lambda: LIMITS)
    dropped: list[str] = []
    gate = asyncio.Event()

    async def stalled() -> None:
        async for _frame in stream.follow(0, lambda: dropped.append("stalled")):
            await gate.wait()

    async def prompt() -> None:
        async for _frame in stream.follow(0, lambda: dropped.append("prompt")):
            pass

    reading = [asyncio.create_task(stalled()), asyncio.create_task(prompt())]
    for number in range(2 * UNREAD_FACTOR * LIMITS.stream_buffer_bytes // len(NOTE)):
        stream.send(NOTE)
        if number % 1000 == 0:
            await asyncio.sleep(0)
    assert set(dropped) == {"stalled"}
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


async def test_delivered_events_are_kept_up_to_the_limit() -> None:
    stream = EventStream("g", True, lambda: Limits(stream_buffer_events=4))
    reading = asyncio.create_task(_read(stream, 50))
    await asyncio.sleep(0)
    for _ in range(50):
        stream.send(NOTE)
    assert len(messages(await reading)) == 50
    stream.close()
    kept = [frame async for frame in stream.follow(0)]
    assert len(messages(kept)) == 4


async def _read(stream: EventStream, count: int) -> list[bytes]:
    frames: list[bytes] = []
    following = stream.follow(0)
    async for frame in following:
        frames.append(frame)
        if len(frames) == count:
            break
    await following.aclose()
    return frames


async def test_equal_news_waits_once_until_it_is_read() -> None:
    """A session without a stream would otherwise collect one message for each reload."""
    stream = EventStream("g", True, lambda: LIMITS)
    for _ in range(3):
        stream.send_once(NOTE)
        stream.send_once(OTHER_NOTE)
    assert messages(await _read(stream, 2)) == [NOTE, OTHER_NOTE]
    stream.send_once(NOTE)
    stream.close()
    assert messages([frame async for frame in stream.follow(2)]) == [NOTE]
