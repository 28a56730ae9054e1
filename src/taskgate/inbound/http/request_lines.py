"""Checks request lines in what was read: the parser accepts several spaces in one, which other software may read differently.

The parser does not report positions. They follow from the sizes of heads and bodies, except after a chunked body: there the
line is only looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskgate.inbound.http.request_head import HeadersRefused

_END: Final = b"\r\n\r\n"


def declared_size(fields: Mapping[bytes, bytes]) -> int | None:
    """Return the size of the body of a head that the parser has accepted; None if it is chunked."""
    return None if b"transfer-encoding" in fields else int(fields.get(b"content-length", b"0"))


class RequestLines:
    """The reads of one connection that may contain a head that is not checked yet."""

    __slots__ = ("_at", "_data", "_looked_at")

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._at: int | None = 0
        """Where the next request begins; None if that is unknown."""
        self._looked_at = 0

    def begin(self, data: bytes, at: int | None) -> None:
        """Take a read in which the next request begins at this place."""
        self._data, self._at, self._looked_at = data, at, 0

    def more(self, data: bytes) -> None:
        """Take a read that continues an incomplete head."""
        if not isinstance(self._data, bytearray):
            self._data = bytearray(self._data)
        self._data += data

    def forget(self) -> None:
        self._data = b""

    def check(self, line: bytes, body_size: int | None) -> None:
        """Check that the head that is now complete begins with this line. Raises HeadersRefused."""
        data, at = self._data, self._at
        if at is None:
            at = data.find(line, self._looked_at)
        else:
            while data[at : at + 1] in (b"\r", b"\n"):  # Empty lines before a request are allowed.
                at += 1
        if at < 0 or not data.startswith(line, at):
            raise HeadersRefused(
                400, "A request line has a method, a target and a version, with one space between them."
            )
        self._looked_at = data.find(_END, at) + len(_END)
        self._at = None if body_size is None else self._looked_at + body_size
