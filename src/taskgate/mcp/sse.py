"""Parse and format server-sent events.

The parser follows the event stream grammar of the HTML standard, with two additions that the MCP transports need: a
block that has an `id` or a `retry` but no data is reported too (a priming event), and the size of an event is limited.
It does not interpret the data.
"""

from __future__ import annotations

import re
from collections import deque

import msgspec

from taskgate.mcp.turn_budget import PIECE_BYTES, TurnBudget, pieces_of

_SAMPLE = 512
PING = b": ping\n\n"
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class SseEvent(msgspec.Struct, frozen=True):
    """One event. `id` is None if the block had none; the reader keeps track of the last id."""

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class SseOverflow(Exception):
    """An event or a line exceeds the limit. `events` were complete before it; `begin` is the start of its data."""

    def __init__(self, limit: int, events: list[SseEvent], begin: bytes = b"") -> None:
        super().__init__(f"a server-sent event is larger than {limit} bytes")
        self.limit = limit
        self.events = events
        self.begin = begin


class SseParser:
    """A push parser from arbitrary chunks to events. It must not be used after an overflow.

    `push` and `next_event` respect a turn budget; `feed` reads everything.
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
        """Input that is not split yet."""
        self._found: list[bytes] = []
        """Lines that were split off; those from `_next` on are unread."""
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

    def set_limit(self, max_event_bytes: int) -> None:
        """Change the maximum size of an event."""
        self.limit = max_event_bytes

    @property
    def has_unread(self) -> bool:
        """Whether pushed input is still unread."""
        return self._next < len(self._found) or bool(self._pieces)

    def push(self, chunk: bytes) -> None:
        """Add input. Raises SseOverflow, as `next_event` does."""
        if self._next == len(self._found) and not self._pieces and 0 < len(chunk) <= PIECE_BYTES:
            self._cut(chunk)
        else:
            self._pieces.extend(pieces_of(chunk))

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return all events that this chunk completes, in order. For readers that need not yield."""
        events: list[SseEvent] = []
        budget = TurnBudget()
        try:
            self.push(chunk)
            while self.has_unread:
                budget.renew()
                event = self.next_event(budget)
                if event is not None:
                    events.append(event)
        except SseOverflow as overflow:
            raise SseOverflow(overflow.limit, events, overflow.begin) from None
        return events

    def next_event(self, budget: TurnBudget) -> SseEvent | None:
        """Return the next event, or None if there is none yet or the budget is spent. Raises SseOverflow."""
        left = allowed = budget.lines
        size = 0
        event: SseEvent | None = None
        while event is None and left > 0:
            if self._next == len(self._found):
                if not self._pieces:
                    break
                piece = self._pieces.popleft()
                size += len(piece)
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
        budget.spend(size, lines=allowed - left, messages=event is not None)
        return event

    def _cut(self, piece: bytes) -> None:
        """Split a piece into lines. The bytes after its last line end start a line that is not complete yet."""
        if self._skip_lf:
            # The CR at the end of the last piece already ended the line; this LF belongs to it.
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
        # Copied once: a value may be megabytes long.
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
    """Return the bytes of one event. Line ends within `data` become separate data lines, which readers join with LF."""
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
