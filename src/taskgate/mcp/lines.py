"""Split a byte stream into lines, with a limit on the length of a line.

A line over the limit is skipped up to its newline and only counted, so a hostile or broken writer can neither fill memory nor block
the lines after it. Empty lines are ignored, and a CR before the LF is removed. Used for the output of child processes and for the
stdio transport.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from taskgate.mcp.turn_budget import PIECE_BYTES, TurnBudget, pieces_of


class Oversize(msgspec.Struct, frozen=True):
    """Replaces a line over the limit. Its first and last bytes help to identify the message."""

    skipped_bytes: int
    begin: bytes = b""
    end: bytes = b""


_SAMPLE = 512


class LineSplitter:
    """A push parser from chunks to lines. `push` and `next_line` respect a turn budget; `feed` reads everything."""

    __slots__ = ("_begin", "_end", "_found", "_next", "_partial", "_partial_bytes", "_pieces", "_skipped", "limit")

    def __init__(self, max_line_bytes: int) -> None:
        self.limit = max_line_bytes
        self._pieces: deque[bytes] = deque()
        """Input that is not split yet."""
        self._found: list[bytes | Oversize] = []
        """Lines that were split off; those from `_next` on are unread."""
        self._next = 0
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._skipped = 0
        self._begin = self._end = b""

    def set_limit(self, max_line_bytes: int) -> None:
        """Change the maximum length of a line."""
        self.limit = max_line_bytes

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received since the last newline. At the end of the stream they are an incomplete line, which is dropped."""
        return self._partial_bytes + self._skipped

    @property
    def has_unread(self) -> bool:
        """Whether pushed input is still unread."""
        return self._next < len(self._found) or bool(self._pieces)

    def push(self, chunk: bytes) -> None:
        if self._next == len(self._found) and not self._pieces and 0 < len(chunk) <= PIECE_BYTES:
            self._cut(chunk)
        else:
            self._pieces.extend(pieces_of(chunk))

    def feed(self, chunk: bytes) -> list[bytes | Oversize]:
        """Return all lines that this chunk completes, in order. For readers that need not yield."""
        self.push(chunk)
        found: list[bytes | Oversize] = []
        budget = TurnBudget()
        while self.has_unread:
            budget.renew()
            line = self.next_line(budget)
            if line is not None:
                found.append(line)
        return found

    def next_line(self, budget: TurnBudget) -> bytes | Oversize | None:
        """Return the next non-empty line, or None if there is none yet or the budget is spent."""
        left = maximum = budget.lines
        size = 0
        line: bytes | Oversize | None = None
        while line is None and left > 0:
            if self._next == len(self._found):
                if not self._pieces:
                    break
                piece = self._pieces.popleft()
                size += len(piece)
                self._cut(piece)
                continue
            left -= 1
            found = self._found[self._next]
            self._next += 1
            if found:
                line = self._whole(found)
        budget.spend(size, lines=maximum - left, messages=line is not None)
        return line

    def _cut(self, piece: bytes) -> None:
        """Split a piece into lines. The bytes after its last newline start a line that is not complete yet."""
        lines: list[Any] = piece.split(b"\n")
        rest = lines.pop()
        self._found, self._next = lines, 0
        if lines and (self._partial or self._skipped):
            lines[0] = self._end_partial(lines[0])
        if rest:
            self._keep_rest(rest)

    def _end_partial(self, line: bytes) -> bytes | Oversize:
        if self._skipped:
            self._skip(line)
            found = Oversize(self._skipped, self._begin, self._end)
            self._skipped = 0
            self._begin = self._end = b""
            return found
        self._partial.append(line)
        line = b"".join(self._partial)
        self._partial.clear()
        self._partial_bytes = 0
        return line

    def _whole(self, line: bytes | Oversize) -> bytes | Oversize | None:
        if isinstance(line, Oversize):
            return line
        if len(line) > self.limit:
            return Oversize(len(line), line[:_SAMPLE], line[-_SAMPLE:])
        if line[-1:] == b"\r":
            line = line[:-1]
        return line or None

    def _keep_rest(self, rest: bytes) -> None:
        if self._skipped:
            self._skip(rest)
            return
        self._partial.append(rest)
        self._partial_bytes += len(rest)
        if self._partial_bytes > self.limit:
            self._skip(b"".join(self._partial))
            self._partial.clear()
            self._partial_bytes = 0

    def _skip(self, part: bytes) -> None:
        self._skipped += len(part)
        if len(self._begin) < _SAMPLE:
            self._begin = (self._begin + part[:_SAMPLE])[:_SAMPLE]
        self._end = (self._end + part[-_SAMPLE:])[-_SAMPLE:]
