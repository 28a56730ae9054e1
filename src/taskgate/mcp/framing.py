"""Messages cut out of bytes: lines, and server-sent events."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from taskgate.mcp.turn_budget import TurnBudget

PIECE_BYTES = 16 * 1024
"""How much is cut into lines in one go, so that a reader can stop between two pieces."""


def _pieces(chunk: bytes) -> Iterable[bytes]:
    return (chunk[begin : begin + PIECE_BYTES] for begin in range(0, len(chunk), PIECE_BYTES))


# Cuts a byte stream into lines, with a limit on how long a line may be.
#
# A line that is too long is skipped up to its newline and only counted, so that a hostile or broken writer cannot fill
# our memory nor stop the lines after it. Empty lines are ignored and a CR before the LF is dropped. Used for the output
# of child processes and for the stdio transport.


class Oversize(msgspec.Struct, frozen=True):
    """Stands where a line was that is longer than allowed; its beginning and its end may tell what it was."""

    skipped_bytes: int
    begin: bytes = b""
    end: bytes = b""


_SAMPLE = 512


class LineSplitter:
    """Push parser: chunks in, whole lines out. `push` and `next_line` read within a turn's budget, `feed` reads everything."""

    __slots__ = ("_begin", "_end", "_found", "_next", "_partial", "_partial_bytes", "_pieces", "_skipped", "limit")

    def __init__(self, max_line_bytes: int) -> None:
        self.limit = max_line_bytes
        self._pieces: deque[bytes] = deque()
        """What was not cut into lines yet."""
        self._found: list[bytes | Oversize] = []
        """Lines that have been cut out, of which those from `_next` on were not read yet."""
        self._next = 0
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

    @property
    def is_behind(self) -> bool:
        """Whether bytes have been pushed that were not read yet."""
        return self._next < len(self._found) or bool(self._pieces)

    def push(self, chunk: bytes) -> None:
        if self._next == len(self._found) and not self._pieces and 0 < len(chunk) <= PIECE_BYTES:
            self._cut(chunk)
        else:
            self._pieces.extend(_pieces(chunk))

    def feed(self, chunk: bytes) -> list[bytes | Oversize]:
        """All lines that this chunk completes, in order. For readers that nobody else waits for."""
        self.push(chunk)
        found: list[bytes | Oversize] = []
        budget = TurnBudget()
        while self.is_behind:
            budget.renew()
            line = self.next_line(budget)
            if line is not None:
                found.append(line)
        return found

    def next_line(self, budget: TurnBudget) -> bytes | Oversize | None:
        """The next line that is not empty, or None where there is none yet or the budget is spent."""
        left = most = budget.lines
        line: bytes | Oversize | None = None
        while line is None and left > 0:
            if self._next == len(self._found):
                if not self._pieces:
                    break
                piece = self._pieces.popleft()
                budget.spend_bytes(len(piece))
                self._cut(piece)
                continue
            left -= 1
            found = self._found[self._next]
            self._next += 1
            if found:
                line = self._whole(found)
        budget.spend_lines(most - left)
        if line is not None:
            budget.spend_message()
        return line

    def _cut(self, piece: bytes) -> None:
        """Cut a piece into lines. What follows its last newline is the beginning of a line that goes on."""
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


# Server-sent events as bytes: a push parser and a formatter.
#
# The parser follows the event stream grammar of the HTML standard with two additions that the MCP transports need: a
# block with an `id` or a `retry` but without data is reported as well (a priming event), and an event has a size limit.
# It knows nothing of JSON-RPC. The HTTP upstreams feed it, the HTTP transport formats with it.

PING = b": ping\n\n"
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class SseEvent(msgspec.Struct, frozen=True):
    """One event. `id` is None when the block named none: remembering the last id is the reader's business."""

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class SseOverflow(Exception):
    """An event or a line is larger than allowed. `events` are those that were complete before it, `begin` begins its data."""

    def __init__(self, limit: int, events: list[SseEvent], begin: bytes = b"") -> None:
        super().__init__(f"a server-sent event is larger than {limit} bytes")
        self.limit = limit
        self.events = events
        self.begin = begin


class SseParser:
    """Turns chunks, cut anywhere, into events. After an overflow it must not be fed again.

    `push` and `next_event` read within a turn's budget, `feed` reads everything.
    """

    __slots__ = (
        "_block_bytes",
        "_data",
        "_event",
        "_first_line",
        "_found",
        "_id",
        "_next",
        "_partial",
        "_partial_bytes",
        "_pieces",
        "_retry",
        "_skip_lf",
        "limit",
    )

    def __init__(self, max_event_bytes: int) -> None:
        self.limit = max_event_bytes
        self._pieces: deque[bytes] = deque()
        """What was not cut into lines yet."""
        self._found: list[bytes] = []
        """Lines that have been cut out, of which those from `_next` on were not read yet."""
        self._next = 0
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._skip_lf = False
        self._first_line = True
        self._data: list[bytes] = []
        self._event = ""
        self._id: str | None = None
        self._retry: int | None = None
        self._block_bytes = 0

    def adopt(self, max_event_bytes: int) -> None:
        """From now on events may be as long as this."""
        self.limit = max_event_bytes

    @property
    def is_behind(self) -> bool:
        """Whether bytes have been pushed that were not read yet."""
        return self._next < len(self._found) or bool(self._pieces)

    def push(self, chunk: bytes) -> None:
        """Raises SseOverflow, as `next_event` does."""
        if self._next == len(self._found) and not self._pieces and 0 < len(chunk) <= PIECE_BYTES:
            self._cut(chunk)
        else:
            self._pieces.extend(_pieces(chunk))

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """All events that this chunk completes, in order. For readers that nobody else waits for."""
        events: list[SseEvent] = []
        budget = TurnBudget()
        try:
            self.push(chunk)
            while self.is_behind:
                budget.renew()
                event = self.next_event(budget)
                if event is not None:
                    events.append(event)
        except SseOverflow as overflow:
            raise SseOverflow(overflow.limit, events, overflow.begin) from None
        return events

    def next_event(self, budget: TurnBudget) -> SseEvent | None:
        """The next event, or None where there is none yet or the budget is spent. Raises SseOverflow."""
        left = allowed = budget.lines
        event: SseEvent | None = None
        while event is None and left > 0:
            if self._next == len(self._found):
                if not self._pieces:
                    break
                piece = self._pieces.popleft()
                budget.spend_bytes(len(piece))
                self._cut(piece)
                continue
            left -= 1
            line = self._found[self._next]
            self._next += 1
            if line:
                self._take_line(line)
            elif self._block_bytes or self._id is not None or self._retry is not None:
                event = self._end_block()
            else:
                self._event = ""
        budget.spend_lines(allowed - left)
        if event is not None:
            budget.spend_message()
        return event

    def _cut(self, piece: bytes) -> None:
        """Cut a piece into lines. What follows its last line end is the beginning of a line that goes on."""
        if self._skip_lf:
            # The line already ended at the CR that closed the last piece; this LF is the other half of it.
            self._skip_lf = False
            if piece[0] == 0x0A:
                piece = piece[1:]
        if b"\r" in piece:
            lines = _LINE_END.split(piece)
            self._skip_lf = piece[-1] == 0x0D
        else:
            lines = piece.split(b"\n")
        rest = lines.pop()
        self._found, self._next = lines, 0
        if lines and self._partial:
            self._partial.append(lines[0])
            lines[0] = b"".join(self._partial)
            self._partial.clear()
            self._partial_bytes = 0
        if lines and self._first_line:
            self._first_line = False
            lines[0] = lines[0].removeprefix(_BOM)
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
            if not lines:
                self._check_size(self._partial_bytes, self._partial[0])

    def _take_line(self, line: bytes) -> None:
        self._check_size(len(line), line)
        colon = line.find(b":")
        if colon == 0:
            return
        if colon < 0:
            self._take_field(line, b"")
            return
        # A value may be megabytes long: it is copied once.
        begin = colon + 2 if line[colon + 1 : colon + 2] == b" " else colon + 1
        self._take_field(line[:colon], line[begin:])

    def _take_field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            self._data.append(value)
            self._block_bytes += len(value) + 1
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 16:
            self._retry = int(value)

    def _check_size(self, more: int, line: bytes) -> None:
        if self._block_bytes + more > self.limit:
            begin = self._data[0] if self._data else line.removeprefix(b"data:").lstrip()
            raise SseOverflow(self.limit, [], begin[:_SAMPLE])

    def _end_block(self) -> SseEvent:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        event = SseEvent(data, self._event or "message", self._id, self._retry)
        self._start_block()
        return event

    def _start_block(self) -> None:
        self._data = []
        self._event = ""
        self._id = None
        self._retry = None
        self._block_bytes = 0


def format_event(
    data: bytes, *, id: str | None = None, event: str | None = "message", retry: int | None = None
) -> bytes:
    """The bytes of one event. Line ends inside `data` become several data lines, so a reader sees each as LF."""
    parts: list[bytes] = []
    if event is not None:
        parts.append(b"event: %b\n" % _one_line("event", event))
    if id is not None:
        parts.append(b"id: %b\n" % _one_line("id", id))
    if retry is not None:
        parts.append(b"retry: %d\n" % retry)
    if b"\n" in data or b"\r" in data:
        parts.extend(b"data: %b\n" % line for line in _LINE_END.split(data))
        parts.append(b"\n")
    else:
        parts += (b"data: ", data, b"\n\n")
    return b"".join(parts)


def _one_line(field: str, value: str) -> bytes:
    if "\n" in value or "\r" in value or "\0" in value:
        raise ValueError(f"the {field} of a server-sent event must be one line")
    return value.encode()
