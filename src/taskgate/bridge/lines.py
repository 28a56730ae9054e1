"""Whole lines in, whole lines out: what waits to be written, and what has been read of a line so far."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable

AT_ONCE_BYTES = 256 * 1024


class Buffer:
    """Lines that wait to be written, counted in bytes."""

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        self.lines: deque[bytes] = deque(lines)
        self.size = sum(map(len, self.lines))
        self._offset = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.size += len(line)

    def add_first(self, lines: list[bytes]) -> None:
        """These are to be written before the others. Only after `start_over`, when none of them is written in part."""
        self.lines.extendleft(reversed(lines))
        self.size += sum(map(len, lines))

    def start_over(self) -> None:
        """The reader that got the first part of a line is gone: the whole line is written to the next one."""
        self._offset = 0

    def write(self, descriptor: int, written: Callable[[bytes], None] | None = None) -> None:
        """Write what can be written now. Raises OSError.

        `written` is called with each line as soon as all of it is out, so that a later failure cannot hide it.
        """
        while self.lines:
            line = self.lines[0]
            try:
                self._offset += os.write(descriptor, memoryview(line)[self._offset : self._offset + AT_ONCE_BYTES])
            except BlockingIOError:
                return
            if self._offset >= len(line):
                self.lines.popleft()
                self.size -= len(line)
                self._offset = 0
                if written is not None:
                    written(line)


class Splitter:
    """Chunks in, whole lines out, with their newlines. A line beyond the limit is dropped, and `too_long` is set."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.too_long = False

    def feed(self, chunk: bytes) -> list[bytes]:
        whole: list[bytes] = []
        pieces = chunk.split(b"\n")
        rest = pieces.pop()
        for piece in pieces:
            self._keep(piece)
            if self._parts:
                whole.append(b"".join(self._parts) + b"\n")
            self._parts, self._size = [], 0
        self._keep(rest)
        return whole

    def dropped_one(self) -> bool:
        """Whether a line was dropped since the last call."""
        dropped, self.too_long = self.too_long, False
        return dropped

    def _keep(self, piece: bytes) -> None:
        known = self._size > self._limit
        self._size += len(piece)
        if self._size > self._limit:
            self._parts, self.too_long = [], self.too_long or not known
        elif piece:
            self._parts.append(piece)
