"""Lines on their way: whole ones in, whole ones out, however the bytes come and go."""

from __future__ import annotations

import os
from collections import deque

AT_ONCE_BYTES = 256 * 1024


class Buffer:
    """Lines that wait to be written, counted in bytes."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self.size = 0
        self._offset = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.size += len(line)

    def start_over(self) -> None:
        """Whoever got the first half of a line is gone."""
        self._offset = 0

    def write(self, descriptor: int) -> list[bytes]:
        """Write what can be written; the lines that are out completely."""
        done: list[bytes] = []
        while self.lines:
            line = self.lines[0]
            try:
                self._offset += os.write(descriptor, memoryview(line)[self._offset : self._offset + AT_ONCE_BYTES])
            except BlockingIOError:
                break
            if self._offset >= len(line):
                self.lines.popleft()
                self.size -= len(line)
                self._offset = 0
                done.append(line)
        return done


class Splitter:
    """Chunks in, whole lines out, with their newlines. A line beyond the limit is dropped, and `too_long` says so."""

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

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            self._parts, self.too_long = [], True
        elif piece:
            self._parts.append(piece)
