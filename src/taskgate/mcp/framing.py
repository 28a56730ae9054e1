"""Messages cut out of bytes: lines, and server-sent events."""

from __future__ import annotations

import re

import msgspec

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
    """Turns chunks, cut anywhere, into events. After an overflow it must not be fed again."""

    __slots__ = (
        "_block_bytes",
        "_data",
        "_event",
        "_first_line",
        "_id",
        "_partial",
        "_partial_bytes",
        "_retry",
        "_skip_lf",
        "limit",
    )

    def __init__(self, max_event_bytes: int) -> None:
        self.limit = max_event_bytes
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

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes, in order."""
        if not chunk:
            return []
        if self._skip_lf:
            # The line already ended at the CR that closed the last chunk; this LF is the other half of it.
            self._skip_lf = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        if b"\r" in chunk:
            lines = _LINE_END.split(chunk)
            self._skip_lf = chunk[-1] == 0x0D
        else:
            lines = chunk.split(b"\n")
        rest = lines.pop()
        events: list[SseEvent] = []
        if lines and self._partial:
            self._partial.append(lines[0])
            lines[0] = b"".join(self._partial)
            self._partial.clear()
            self._partial_bytes = 0
        for line in lines:
            self._take_line(line, events)
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
            self._check_size(self._partial_bytes, events, self._partial[0])
        return events

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            self._end_block(events)
            return
        self._check_size(len(line), events, line)
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

    def _check_size(self, more: int, events: list[SseEvent], line: bytes) -> None:
        if self._block_bytes + more > self.limit:
            begin = self._data[0] if self._data else line.removeprefix(b"data:").lstrip()
            raise SseOverflow(self.limit, events, begin[:_SAMPLE])

    def _end_block(self, events: list[SseEvent]) -> None:
        if self._data or self._id is not None or self._retry is not None:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(SseEvent(data, self._event or "message", self._id, self._retry))
        self._start_block()

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
