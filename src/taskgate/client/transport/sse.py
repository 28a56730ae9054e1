"""Reads a stream of server-sent events from chunks of bytes, however they are cut.

Knows the event-stream format only (lines end with CR, LF or both; `data`, `id`, `event`, `retry`; comments),
nothing of MCP. Fed by the HTTP transport.
"""

from __future__ import annotations

from collections.abc import Callable

from taskgate.client.errors import ReplyTooLarge


class EventReader:
    """Calls `on_data` with the data of each event, and remembers the last id and the retry time the server asked
    for.
    """

    __slots__ = (
        "_data",
        "_held",
        "_id",
        "_limit",
        "_on_data",
        "_pieces",
        "_skip_lf",
        "_started",
        "last_id",
        "retry_ms",
    )

    def __init__(self, on_data: Callable[[bytes], None], limit: int) -> None:
        self._on_data = on_data
        self._limit = limit
        self._pieces: list[bytes] = []
        self._held = 0
        self._data: list[bytes] = []
        self._id: str | None = None
        self._skip_lf = False
        self._started = False
        self.last_id: str | None = None
        self.retry_ms: int | None = None

    def feed(self, chunk: bytes) -> None:
        if not self._started:
            self._started = True
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if b"\r" in chunk or self._skip_lf:
            chunk = self._only_line_feeds(chunk)
        first, *rest = chunk.split(b"\n")
        self._pieces.append(first)
        if rest:
            self._line(b"".join(self._pieces))
            for line in rest[:-1]:
                self._line(line)
            self._pieces = [rest[-1]]
            self._held = len(rest[-1]) + sum(map(len, self._data))
        else:
            self._held += len(first)
        if self._held > self._limit:
            raise ReplyTooLarge(f"one event grew past {self._limit} bytes")

    def _only_line_feeds(self, chunk: bytes) -> bytes:
        if self._skip_lf and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._skip_lf = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _line(self, line: bytes) -> None:
        if not line:
            self._dispatch()
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self.retry_ms = min(int(value[:9]), 3_600_000)

    def _dispatch(self) -> None:
        if self._id is not None:
            self.last_id = self._id or None
        data, self._data = b"\n".join(self._data), []
        if data:
            self._on_data(data)
