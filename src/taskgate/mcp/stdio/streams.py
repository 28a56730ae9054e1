"""The standard streams of a child as callbacks on bare descriptors: a writer that counts what the kernel took, and readers.

The pipe transports of the event loops are not used: they do not tell which line was cut off when a pipe broke, and it
depends on the loop who closes the descriptor. Here each file object owns its descriptor, alone, until `close`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import IO

from taskgate.mcp.failures import ChildFailure, ChildProblem

_BUFFER_BYTES = 32 * 1024 * 1024
# As much as a pipe holds.
_READ_BYTES = 64 * 1024


class LineWriter:
    """Lines towards the child. They are numbered from 1; those up to `handed_over` are in the kernel's hands."""

    __slots__ = ("_last", "_loop", "_pipe", "_queue", "_queued_bytes", "_rest", "handed_over")

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._rest = memoryview(b"")
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._last = 0
        self.handed_over = 0

    def send(self, line: bytes) -> int:
        """Write or queue one line and return its number; raises ChildFailure if it cannot get there."""
        if self._pipe.closed:
            raise ChildFailure(ChildProblem.GONE, "the process has ended or closed its input")
        if self._queued_bytes + len(line) > _BUFFER_BYTES:
            raise ChildFailure(ChildProblem.BUFFER_FULL, "the process does not read its input fast enough")
        data = line + b"\n"
        if self._rest:
            self._queue.append(data)
            self._queued_bytes += len(data)
        else:
            self._rest = memoryview(data)
            self._push()
            if self._pipe.closed:
                raise ChildFailure(ChildProblem.GONE, "the process closed its input before the line had left")
            if self._rest:
                self._loop.add_writer(self._pipe.fileno(), self._go_on)
        self._last += 1
        return self._last

    def close(self) -> None:
        """End the child's input. What it has not made room for is given up."""
        if not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())
            self._pipe.close()
        self._queue.clear()
        self._queued_bytes = 0

    def _push(self) -> None:
        """Write what is left of the present line, as far as there is room; a broken pipe is closed."""
        try:
            self._rest = self._rest[os.write(self._pipe.fileno(), self._rest) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self._rest:
            self.handed_over += 1

    def _go_on(self) -> None:
        self._push()
        while not self._rest and self._queue and not self._pipe.closed:
            data = self._queue.popleft()
            self._queued_bytes -= len(data)
            self._rest = memoryview(data)
            self._push()
        if not self._rest and not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())


class ChunkReader:
    """Bytes from the child, as they come, and the end of them."""

    __slots__ = ("_loop", "_on_chunk", "_on_end", "_pipe", "is_paused")

    def __init__(self, pipe: IO[bytes], on_chunk: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._on_chunk = on_chunk
        self._on_end = on_end
        self.is_paused = False
        self._loop.add_reader(pipe.fileno(), self._read)

    def pause(self) -> None:
        """Leave what comes in the pipe, which makes a child that goes on writing wait."""
        if not self._pipe.closed and not self.is_paused:
            self.is_paused = True
            self._loop.remove_reader(self._pipe.fileno())

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            if not self._pipe.closed:
                self._loop.add_reader(self._pipe.fileno(), self._read)

    def close(self) -> None:
        """Stop listening, without an end being told."""
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_chunk(data)
        else:
            self.close()
            self._on_end()
