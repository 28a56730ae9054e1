"""Cuts a byte stream into lines, with a limit on how long a line may be.

A line that is too long is skipped up to its newline and only counted, so that a hostile or broken writer cannot fill
our memory nor stop the lines after it. Empty lines are ignored and a CR before the LF is dropped. Used for the output
of child processes and for the stdio transport.
"""

from __future__ import annotations

import msgspec


class Oversize(msgspec.Struct, frozen=True):
    """Stands where a line was that is longer than allowed; its beginning and its end may tell what it was."""

    skipped_bytes: int
    begin: bytes = b""
    end: bytes = b""


_SAMPLE = 512


class LineSplitter:
    """Push parser: chunks in, whole lines out."""

    __slots__ = ("_begin", "_end", "_partial", "_partial_bytes", "_skipped", "limit")

    def __init__(self, max_line_bytes: int) -> None:
        self.limit = max_line_bytes
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._skipped = 0
        self._begin = self._end = b""

    def adopt(self, max_line_bytes: int) -> None:
        """From now on lines may be as long as this."""
        self.limit = max_line_bytes

    @property
    def unfinished_bytes(self) -> int:
        """How many bytes came since the last newline: at the end of the stream, a half line that counts for nothing."""
        return self._partial_bytes + self._skipped

    def feed(self, chunk: bytes) -> list[bytes | Oversize]:
        """The lines that this chunk completes, in order."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        found: list[bytes | Oversize] = []
        if lines:
            self._end_first_line(lines[0], found)
            for line in lines[1:]:
                self._add_line(line, found)
        if rest:
            self._keep_rest(rest)
        return found

    def _end_first_line(self, line: bytes, found: list[bytes | Oversize]) -> None:
        if self._skipped:
            self._skip(line)
            found.append(Oversize(self._skipped, self._begin, self._end))
            self._skipped = 0
            self._begin = self._end = b""
            return
        if self._partial:
            self._partial.append(line)
            line = b"".join(self._partial)
            self._partial.clear()
            self._partial_bytes = 0
        self._add_line(line, found)

    def _add_line(self, line: bytes, found: list[bytes | Oversize]) -> None:
        if len(line) > self.limit:
            found.append(Oversize(len(line), line[:_SAMPLE], line[-_SAMPLE:]))
            return
        if line[-1:] == b"\r":
            line = line[:-1]
        if line:
            found.append(line)

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
