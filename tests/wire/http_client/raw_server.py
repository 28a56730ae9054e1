"""A scripted server on loopback with full control over its bytes: the peer for tests of the HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class RawServer:
    """Counts its connections; each runs the script once."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.open_now = 0
        self.errors: list[BaseException] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_now += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._script(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The client hanging up is what many tests are about; cancelled is how a test ends.
        except Exception as error:
            self.errors.append(error)
        finally:
            self.open_now -= 1
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


@contextlib.asynccontextmanager
async def serving(script: Script, *, context: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    raw = RawServer(script)
    # A small receive buffer lets a test fill it, and so keep a request from leaving.
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    server = await asyncio.start_server(raw.serve_one, sock=listener, ssl=context, limit=16 * 1024)
    raw.port = listener.getsockname()[1]
    try:
        yield raw
    finally:
        server.close()
        await raw.stop()
    assert raw.errors == []


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request with a content-length (or none)."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head, await reader.readexactly(length)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, not FIN."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answering(*replies: bytes) -> Script:
    """Reads a request and writes one of the replies, in turn, on one connection; then closes it."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            await read_request(reader)
            writer.write(reply)
            await writer.drain()
        await reader.read(1)

    return script


def answering_then_closing(reply: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(reply)

    return script


def answering_then_resetting(reply: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if reply:
            writer.write(reply)
            await writer.drain()
            # The client must have read the beginning before the reset, which discards what is unread.
            await asyncio.sleep(0.05)
        reset(writer)

    return script


async def forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes everything, answers nothing."""
    while await reader.read(65536):
        pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)
