"""Buffered writing and splitting of lines."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable

AT_ONCE_BYTES = 256 * 1024


class Buffer:
    """Lines waiting to be written, with their total size."""

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        self.lines: deque[bytes] = deque(lines)
        self.size = sum(map(len, self.lines))
        self._offset = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.size += len(line)

    def add_first(self, lines: list[bytes]) -> None:
        """Insert lines before the others. Only after `start_over`, when no line is partially written."""
        self.lines.extendleft(reversed(lines))
        self.size += sum(map(len, lines))

    def start_over(self) -> None:
        """Write a partially written line again from its start, to a new reader."""
        self._offset = 0

    def write(self, descriptor: int, written: Callable[[bytes], None] | None = None) -> None:
        """Write without blocking. Raises OSError.

        `written` is called with each line as soon as it is written completely, before a later failure.
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
    """Splits chunks into lines with their newlines. A line over the limit is dropped, and `too_long` is set."""

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
        """Return whether a line was dropped since the last call."""
        dropped, self.too_long = self.too_long, False
        return dropped

    def _keep(self, piece: bytes) -> None:
        known = self._size > self._limit
        self._size += len(piece)
        if self._size > self._limit:
            self._parts, self.too_long = [], self.too_long or not known
        elif piece:
            self._parts.append(piece)
