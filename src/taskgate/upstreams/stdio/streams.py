"""The three standard streams of a child as callbacks: one writer that counts what the kernel took, two readers.

At most one line waits in the event loop's own buffer; the others wait here. So it is known of each line whether its newline
had been handed over when the pipe broke.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from taskgate.upstreams.stdio.failure import ChildFailure, ChildProblem

_BUFFER_BYTES = 32 * 1024 * 1024


class LineWriter(asyncio.BaseProtocol):
    """Lines towards the child. Numbers count from 1."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._paused = False
        self._last = 0
        self.handed_over = 0

    def send(self, line: bytes) -> int:
        """Write or queue one line and return its number; raises ChildFailure if it cannot get there."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ChildFailure(ChildProblem.GONE, "the process has ended or closed its input")
        if self._queued_bytes + len(line) > _BUFFER_BYTES:
            raise ChildFailure(ChildProblem.BUFFER_FULL, "the process does not read its input fast enough")
        if self._paused:
            self._queue.append(line)
            self._queued_bytes += len(line) + 1
        elif not self._write(transport, line):
            raise ChildFailure(ChildProblem.GONE, "the process closed its input before the line had left")
        self._last += 1
        return self._last

    def close(self) -> None:
        """End the child's input. Lines that it has not made room for are given up."""
        self._queue.clear()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Let go of the pipe without flushing."""
        self._queue.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.set_write_buffer_limits(high=0, low=0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._queue.clear()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.handed_over += 1
        while self._queue and not self._paused and self._transport is not None:
            line = self._queue.popleft()
            self._queued_bytes -= len(line) + 1
            if not self._write(self._transport, line):
                self._queue.clear()

    def _write(self, transport: asyncio.WriteTransport, line: bytes) -> bool:
        transport.write(line + b"\n")
        if self._paused:
            return True
        if transport.is_closing():
            return False
        self.handed_over += 1
        return True


class ChunkReader(asyncio.Protocol):
    """Bytes from the child, as they come, and the end of them."""

    def __init__(self, on_chunk: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_chunk = on_chunk
        self._on_end = on_end
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._on_chunk(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_end()

    def close(self) -> None:
        """Let go of the pipe."""
        if self._transport is not None:
            self._transport.close()
