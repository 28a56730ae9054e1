"""Callback-based pipes of a child process: a writer that counts the lines the kernel took, and a reader with a turn budget.

The pipe transports of the event loops are not used: they do not report which line was truncated when a pipe broke, and the owner of
the descriptor differs between loops. Here each file object is the only owner of its descriptor until `close`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import IO

from taskgate.mcp.failures import ChildFailure, ChildProblem
from taskgate.mcp.lines import LineSplitter, Oversize
from taskgate.mcp.turn_budget import SLICE_BYTES, TurnBudget

_BUFFER_BYTES = 32 * 1024 * 1024


class LineWriter:
    """Write lines to the child. They are numbered from 1; those up to `handed_over` were handed to the kernel."""

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
        """Write or queue one line and return its number. Raises ChildFailure if it cannot be sent."""
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
                raise ChildFailure(ChildProblem.GONE, "the process closed its input before the line was sent")
            if self._rest:
                self._loop.add_writer(self._pipe.fileno(), self._write_more)
        self._last += 1
        return self._last

    def close(self) -> None:
        """Close the child's input. Queued lines are dropped."""
        if not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())
            self._pipe.close()
        self._queue.clear()
        self._queued_bytes = 0

    def _push(self) -> None:
        """Write the rest of the current line as far as the pipe has room. A broken pipe is closed."""
        try:
            self._rest = self._rest[os.write(self._pipe.fileno(), self._rest) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self._rest:
            self.handed_over += 1

    def _write_more(self) -> None:
        self._push()
        while not self._rest and self._queue and not self._pipe.closed:
            data = self._queue.popleft()
            self._queued_bytes -= len(data)
            self._rest = memoryview(data)
            self._push()
        if not self._rest and not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())


class LineReader:
    """Read lines from the child within a turn budget, and report the end of the stream.

    Input beyond the budget stays in the pipe, which blocks a child that keeps writing.
    """

    __slots__ = (
        "_budget",
        "_lines",
        "_loop",
        "_on_end",
        "_on_line",
        "_pipe",
        "_reading",
        "_reading_paused",
        "_turn_handle",
    )

    def __init__(
        self,
        pipe: IO[bytes],
        max_line_bytes: int,
        on_line: Callable[[bytes | Oversize], None],
        on_end: Callable[[], None],
    ) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._lines = LineSplitter(max_line_bytes)
        self._budget = TurnBudget()
        self._on_line = on_line
        self._on_end = on_end
        self._reading_paused = False
        self._turn_handle: asyncio.Handle | None = None
        self._reading = False
        self._start_reading()

    @property
    def is_paused(self) -> bool:
        """Whether lines may be undelivered because reading is paused."""
        return not self._reading and not self._pipe.closed

    @property
    def unfinished_bytes(self) -> int:
        return self._lines.unfinished_bytes

    def set_max_line_bytes(self, max_line_bytes: int) -> None:
        self._lines.set_limit(max_line_bytes)

    def pause_reading(self) -> None:
        """Deliver nothing until `resume_reading`."""
        self._reading_paused = True
        self._stop_reading()

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._schedule_turn()

    def close(self) -> None:
        """Stop reading without reporting the end."""
        self._stop_reading()
        if self._turn_handle is not None:
            self._turn_handle.cancel()
            self._turn_handle = None
        if not self._pipe.closed:
            self._pipe.close()

    def _start_reading(self) -> None:
        if not self._reading and not self._pipe.closed:
            self._reading = True
            self._loop.add_reader(self._pipe.fileno(), self._read)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._pipe.fileno())

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), SLICE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._lines.push(data)
            self._deliver()
        else:
            self.close()
            self._on_end()

    def _deliver(self) -> None:
        lines, budget = self._lines, self._budget
        while lines.has_unread and not budget.spent and not self._reading_paused:
            line = lines.next_line(budget)
            if line is not None:
                self._on_line(line)
        if self._reading_paused or self._pipe.closed:
            return
        if budget.spent or lines.has_unread:
            self._schedule_turn()
        else:
            self._start_reading()

    def _schedule_turn(self) -> None:
        self._stop_reading()
        if self._turn_handle is None and not self._pipe.closed:
            self._turn_handle = self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._turn_handle = None
        self._budget.renew()
        self._deliver()
