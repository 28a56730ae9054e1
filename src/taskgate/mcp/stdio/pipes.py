"""The standard streams of a child process as callbacks on bare descriptors: a writer that counts what the kernel took, and a reader
of lines that stops when a turn of the event loop allows no more.

The pipe transports of the event loops are not used: they do not report which line was cut off when a pipe broke, and it depends on
the loop who closes the descriptor. Here each file object owns its descriptor, alone, until `close`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import IO

from taskgate.mcp.failures import ChildFailure, ChildProblem
from taskgate.mcp.framing import LineSplitter, Oversize
from taskgate.mcp.turn_budget import SLICE_BYTES, TurnBudget

_BUFFER_BYTES = 32 * 1024 * 1024


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


class LineReader:
    """Lines from the child, within a turn's budget, and the end of them.

    What the budget does not allow stays in the pipe, which makes a child that goes on writing wait.
    """

    __slots__ = ("_budget", "_held_back", "_lines", "_loop", "_next_turn", "_on_end", "_on_line", "_pipe", "_reading")

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
        self._held_back = False
        self._next_turn: asyncio.Handle | None = None
        self._reading = False
        self._read_more()

    @property
    def is_paused(self) -> bool:
        """Whether there may be lines that were not handed on yet because it is not their turn."""
        return not self._reading and not self._pipe.closed

    @property
    def unfinished_bytes(self) -> int:
        return self._lines.unfinished_bytes

    def adopt(self, max_line_bytes: int) -> None:
        self._lines.adopt(max_line_bytes)

    def hold_back(self) -> None:
        """Hand on nothing until `go_on`."""
        self._held_back = True
        self._read_no_more()

    def go_on(self) -> None:
        self._held_back = False
        self._go_on_later()

    def close(self) -> None:
        """Stop listening, without an end being reported."""
        self._read_no_more()
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if not self._pipe.closed:
            self._pipe.close()

    def _read_more(self) -> None:
        if not self._reading and not self._pipe.closed:
            self._reading = True
            self._loop.add_reader(self._pipe.fileno(), self._read)

    def _read_no_more(self) -> None:
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
            self._hand_on()
        else:
            self.close()
            self._on_end()

    def _hand_on(self) -> None:
        lines, budget = self._lines, self._budget
        while lines.is_behind and not budget.spent and not self._held_back:
            line = lines.next_line(budget)
            if line is not None:
                self._on_line(line)
        if self._held_back or self._pipe.closed:
            return
        if budget.spent or lines.is_behind:
            self._go_on_later()
        else:
            self._read_more()

    def _go_on_later(self) -> None:
        self._read_no_more()
        if self._next_turn is None and not self._pipe.closed:
            self._next_turn = self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._next_turn = None
        self._budget.renew()
        self._hand_on()
